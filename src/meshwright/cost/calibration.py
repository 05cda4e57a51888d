"""How well machines do: the few constants that turn public peaks into times, with what they were fitted to.

A cluster file says what a machine is, a calibration what it reaches of that. It is a small document that a person can
read and change; `public.yaml` beside this module is used where no other is given.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from meshwright.document import Document, Record
from meshwright.units import Bytes, Flag, NonNegativeFloat, PositiveInt, Seconds

Fraction = Annotated[float, Field(gt=0, le=1)]
"""Of a public peak: above 1 a time would lie under the roofline."""
Factored = Annotated[float, Field(ge=0.1, le=10)]
Factor = Annotated[float, Field(ge=1, le=10)]
Core = Literal["package", "early", "maker"]
"""Whose flash attention: the package of that name from its second version on, and PyTorch's copy of it; its first
version, or Triton's; or the device's maker's (cuDNN, which Transformer Engine calls)."""
PUBLIC = Path(__file__).parent / "calibrations" / "public.yaml"


class DeviceConstants(Record):
    """What a kind of device reaches of its peaks. The defaults are a device without losses: the plain roofline."""

    matmul: Fraction = 1.0
    """Of the peak, large matrix products."""
    inner: NonNegativeFloat = 0.0
    """The length of a product's sums at which filling and draining doubles its time."""
    units: PositiveInt = 1
    """Multiprocessors that tiles are dealt to; 1: tiles do not matter."""
    narrow: Fraction = 1.0
    """Of what products reach, those in fp8 or fp4, against their own peak."""
    by_rows: Fraction = 1.0
    """Of what narrow products reach, those whose operands have a scale for each row."""
    unaligned: Fraction = 1.0
    """Of what products reach, those whose rows in memory do not begin at multiples of 16 bytes."""
    unaligned_batched: Fraction = 1.0
    """The same of the products of attention that writes its scores out."""
    batched: Fraction = 1.0
    """Of the peak, the products of attention that writes its scores out."""
    flash: Fraction = 1.0
    """Of the peak, the products of flash attention forward, by the FLOPs that its mask leaves."""
    flash_backward: Fraction = 1.0
    own_flash: Fraction | None = None
    """Forward, where an implementation calls the attention kernels of the device's maker (cuDNN); none: as `flash`."""
    own_flash_backward: Fraction | None = None
    early_flash: Fraction = 1.0
    """Of what `flash` is, what the first version of flash attention reaches, and that of Triton."""
    softmax: NonNegativeFloat = 0.0
    """The head dimension at which flash attention's exponentials take as long as its products at the peak."""
    edge: NonNegativeFloat = 0.0
    """Positions by which a sequence seems longer to flash attention: at its ends, and where a mask cuts tiles."""
    memory: Fraction = 1.0
    """Of the memory's bandwidth, kernels that are bound by it."""
    start: Seconds = 0.0
    """Of the device, to begin and end one kernel: the least that a kernel takes."""
    launch: Seconds = 0.0
    """Of the host, to launch one kernel of forward: what small layers wait for (`launches`)."""
    spread: Fraction | Literal[0] = 0
    """What the computed peak of allocated memory misses by, as a share of it, up or down."""
    fragmentation: tuple[Factor, Factor] = (1.0, 1.0)
    """What the allocator reserves for what comes and goes in a step: low and high."""
    fragmentation_in_flight: tuple[Factor, Factor] = (1.0, 1.0)
    """The same where several micro-batches are in flight, which let go first of what they took first: gaps stay, where
    a single one lets go last in, first out."""
    context: tuple[Bytes, Bytes] = (0.0, 0.0)
    """Of the runtime and its kernels: low and high."""
    communicator: tuple[Bytes, Bytes] = (0.0, 0.0)
    """Of the buffers of one communicator: low and high."""

    def flashes(self, core: Core) -> tuple[float, float]:
        """Of the peak, the products of flash attention forward and backward, by the kernels of an implementation.

        >>> DeviceConstants(flash=0.4, flash_backward=0.3, own_flash=0.8, own_flash_backward=0.6).flashes("maker")
        (0.8, 0.6)
        """
        if core == "maker" and self.own_flash and self.own_flash_backward:
            return self.own_flash, self.own_flash_backward
        early = self.early_flash if core == "early" else 1.0
        return self.flash * early, self.flash_backward * early


class LinkConstants(Record):
    """What a kind of link reaches."""

    bandwidth: Fraction = 1.0
    latency: Seconds | None = None
    """Of a step of a collective, in place of the link's own."""
    in_switch: Flag = False
    """True where all-reduces are left to switches that can add (NCCL's NVLS algorithm)."""


class Calibration(Document):
    """Constants by device and link, and for all others."""

    noun: ClassVar[str] = "calibration"
    provenance: ClassVar[frozenset[str]] = frozenset({"source", "date"})
    meshwright_calibration: Literal[1] = 1
    name: str
    source: str
    """What it was fitted to."""
    date: str = ""
    devices: dict[str, DeviceConstants] = Field(default_factory=dict)
    """By the name that a cluster gives its device."""
    others: DeviceConstants = DeviceConstants()
    """For devices that are not named."""
    links: dict[str, LinkConstants] = Field(default_factory=dict)
    other_links: LinkConstants = LinkConstants()
    host: tuple[Factor, Factor] = (1.0, 1.0)
    """What a byte that offload keeps on the host takes up there: low and high."""
    hidden: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of tensor-parallel exchanges that are cut into pieces to hide behind products: the share that does."""
    software: dict[str, Factored] = Field(default_factory=dict)
    """What steps of a family of frameworks take over what is computed: of the fit, not part of any estimate, since a
    plan does not say what will run it."""
    contention: NonNegativeFloat = 0.0
    """What computing takes longer, as a share, while communication runs beside it."""

    def device(self, name: str) -> DeviceConstants:
        """The constants of a device."""
        return self.devices.get(name, self.others)

    def link(self, name: str) -> LinkConstants:
        """The constants of a link."""
        return self.links.get(name, self.other_links)


IDEAL = Calibration(name="ideal", source="no losses: the plain roofline and public bandwidths")


@cache
def public_calibration() -> Calibration:
    """The constants that are used where no others are given."""
    return Calibration.read(PUBLIC)


def read_calibration(what: "str | Path | Calibration") -> Calibration:
    """A calibration from its file; `ideal` is the plain roofline. Raises DocumentError."""
    if isinstance(what, Calibration):
        return what
    return IDEAL if what == "ideal" else Calibration.read(what)
