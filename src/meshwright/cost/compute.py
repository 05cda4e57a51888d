"""How long operators take: the roofline, max(FLOPs / peak, bytes moved / memory bandwidth), one operator at a time,
with what a device reaches of both (`efficiency`).

Backward does twice the matrix FLOPs of forward: one product for the input's gradient, one for the weight's, each where
it is wanted. Flash attention computes the scores again, and skips what a mask hides (Dao 2022; Dao 2023, section 4.1).
Williams 2009 for the roofline.
"""

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.cluster.spec import Pool
from meshwright.cost.attention_uses import streamed
from meshwright.cost.calibration import Core, DeviceConstants
from meshwright.cost.casts import Narrow, casts
from meshwright.cost.efficiency import Peaks, product_seconds
from meshwright.cost.kernels import KernelSet
from meshwright.cost.launches import BACKWARD, Launches, launched
from meshwright.cost.placement import Placement
from meshwright.cost.products import Product, gradients, products
from meshwright.cost.repeats import is_repeated
from meshwright.cost.shares import Share
from meshwright.cost.uses import Storage
from meshwright.model.operators import Attention, Convolution, Experts, Linear, Router
from meshwright.model.work import Flops
from meshwright.plan.spec import Recompute


class Machine(NamedTuple):
    """One device as a stage's work sees it."""

    compute: float
    """FLOP per second in the compute dtype."""
    matmul: float
    """FLOP per second of matrix products of activations with weights."""
    memory: float
    """Bytes per second."""
    slowdown: float = 1.0
    """Ranks for each of the compute units that their pool shares."""
    reached: DeviceConstants = DeviceConstants()
    """Of these peaks."""

    @property
    def streamed(self) -> float:
        """Bytes per second that kernels reach which are bound by memory."""
        return self.memory * self.reached.memory


def machines(placement: Placement, group: str) -> list[Machine]:
    return placement.calibrated(
        ("machines", group), lambda: [_machine(placement, pool) for pool, _ in placement.pools(group)]
    )


def _machine(placement: Placement, pool: Pool) -> Machine:
    device, recipe, units = placement.inputs.cluster.devices[pool.device], placement.recipe, pool.compute_units
    busy = _busy(placement, pool)
    compute = device.peak[recipe.precision.compute]
    matmul = device.peak[recipe.precision.matmul or recipe.precision.compute]
    slowdown = max(1.0, busy / units) if units else 1.0
    return Machine(compute, matmul, device.memory_bandwidth, slowdown, placement.calibration.device(pool.device))


def _busy(placement: Placement, pool: Pool) -> int:
    """Ranks that the plan runs on a pool."""
    return sum(count for name in placement.plan.groups for used, count in placement.pools(name) if used is pool)


class Seconds(NamedTuple):
    """The computing of one layer for one micro-batch."""

    forward: float = 0.0
    recompute: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    """Of backward, the products for the gradients of the weights."""
    input: float = 0.0
    """Of backward, those for the gradients of their inputs."""

    def plus(self, other: "Seconds") -> "Seconds":
        """Both together."""
        return Seconds(
            self.forward + other.forward,
            self.recompute + other.recompute,
            self.backward + other.backward,
            self.weight + other.weight,
            self.input + other.input,
        )


class Flash(NamedTuple):
    """Flash attention, of what the mask leaves."""

    forward: float
    """FLOPs."""
    backward: float
    """FLOPs, with the scores computed again."""
    head_dim: int
    context: float
    """Positions that a row looks at."""
    core: Core
    streamed: float = 0.0
    """Bytes that the kernel of forward reads and writes."""


class Load(NamedTuple):
    """What an operator's time depends on, whatever the machine."""

    moved: tuple[float, float]
    """Bytes to and from memory, forward and backward; where there are products or flash attention, by the kernels
    beside these.
    """
    launches: float
    """Kernels of forward; backward has twice as many."""
    passes: bool
    learns: bool
    flash: "Flash | None" = None
    """In place of products."""
    products: tuple[tuple[Product, ...], tuple[Product, ...], tuple[Product, ...]] = ((), (), ())
    """Of forward, and of backward for the gradients of the input and of the weight."""
    batched: bool = False
    """True for the many small products of an attention core."""
    narrow: Narrow | None = None
    """Where the recipe has a narrower dtype for products with weights."""


def load_of(share: Share, kernels: KernelSet, storage: Storage, narrow: Narrow | None = None) -> Load:
    """What a rank's share of an operator asks of a machine; `narrow` as in Load, for operators that have weights."""
    moved = kernels.use(share, storage).moved
    load = Load((moved, 2 * moved), launched(kernels.name, share), share.passes, share.learns)
    batched = isinstance(share.operator, Attention)
    if isinstance(share.operator, Attention) and kernels.is_flash(share, storage):
        flash = _flash(share, share.operator, kernels, storage)
        more = max(0.0, moved - flash.streamed)
        return load._replace(flash=flash, moved=(more, 2 * more))
    forward = products(share.operator, share.work)
    if not forward:
        return load
    by_input, by_weight = gradients(share.operator, forward)
    by_weights = isinstance(share.operator, Linear | Experts | Convolution)
    if not (by_weights or isinstance(share.operator, Router)):
        by_input, by_weight = by_input + by_weight, ()
    narrow = narrow if by_weights else None
    found = (forward, by_input * load.passes, by_weight * load.learns)
    back = found[1] + found[2]
    beside = (_beside(moved, forward, storage), _beside(2 * moved, back, storage) if back else 0.0)
    cast = casts(share, kernels, storage.element, narrow) if narrow else (0.0, 0.0)
    together = beside[0] + cast[0], beside[1] + cast[1] + storage.element * _added(share, kernels)
    return load._replace(moved=together, products=found, batched=batched, narrow=narrow)


def _added(share: Share, kernels: KernelSet) -> float:
    """Numbers that are read and written to add a matrix's gradient for its input to that of one that reads the same."""
    if kernels.joins or share.fresh or not share.passes or not isinstance(share.operator, Linear):
        return 0.0
    return 3.0 * share.work.positions * share.operator.inputs


def _beside(moved: float, shapes: tuple[Product, ...], storage: Storage) -> float:
    """Bytes that are not those of products."""
    return max(0.0, moved - storage.element * sum(shape.numbers for shape in shapes))


def _flash(share: Share, core: Attention, kernels: KernelSet, storage: Storage) -> Flash:
    flops = core.flops(share.work)
    seen = _seen(flops)
    context = min(share.work.context, core.window or share.work.context)
    forward, backward = flops.forward * seen, (flops.by_input + flops.again) * seen
    return Flash(forward, backward, core.head_dim, context, kernels.core, streamed(core, share, storage))


def flash_seconds(flash: Flash, peak: float, reached: DeviceConstants) -> tuple[float, float]:
    """Forward and backward of flash attention: products, then an exponential for each score. Backward has five products
    for each score where forward has two, and takes the exponentials once again.

        FLOPs / peak (1 / fraction + softmax / head dimension) (1 + edge / context)

    An H100 (`softmax` 64, 16 exponentials a clock and multiprocessor) does 335 of 989 TFLOP/s forward in causal
    sequences of 16,384 with heads of 128, 299 with heads of 64, 191 in sequences of 512 (Shah 2024, figures 5 and 6):

    >>> package = DeviceConstants(flash=0.41, flash_backward=0.35, softmax=64, edge=300)
    >>> def rate(head_dim, context):
    ...     return round(989 / flash_seconds(Flash(1, 1, head_dim, context, "package"), 1, package)[0] / 1000, 3)
    >>> rate(128, 16384), rate(64, 16384), rate(128, 512)
    (0.33, 0.282, 0.212)
    """
    there, back = reached.flashes(flash.core)
    exponentials = reached.softmax / flash.head_dim
    longer = (1 + reached.edge / flash.context) / peak
    return (
        flash.forward * (1 / there + exponentials) * longer,
        flash.backward * (1 / back + _ONE_IN * exponentials) * longer,
    )


_ONE_IN = 2 / 5
"""Exponentials of a FLOP in flash attention's backward over those in its forward."""


def operator_seconds(load: Load, storage: Storage, machine: Machine) -> Seconds:
    """One operator, without recompute.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=1024, outputs=4096), Work(1, 512, 512), learns=True, passes=True)
    >>> load = load_of(share, KERNEL_SETS["hf-sdpa"], Storage())
    >>> operator_seconds(load, Storage(), Machine(1e12, 1e12, 1e12))[:3]
    (0.004294967296, 0.0, 0.008589934592)
    """
    slowdown, started = machine.slowdown, load.launches * machine.reached.start
    moved, moved_back = (size / machine.streamed for size in load.moved)
    forward, by_input, weight = _computed(load, storage, machine)
    backward = by_input + weight + moved_back + 2 * started if load.passes or load.learns else 0.0
    there = slowdown * (forward + moved + started)
    return Seconds(there, 0.0, slowdown * backward, slowdown * weight, slowdown * by_input)


def _computed(load: Load, storage: Storage, machine: Machine) -> tuple[float, float, float]:
    """Forward, and backward's products for the gradient of the input and of the weight."""
    reached = machine.reached
    if load.flash:
        there, back = flash_seconds(load.flash, machine.compute, reached)
        least = load.flash.streamed / machine.streamed
        return max(there, least), max(back, 2 * least), 0.0
    if not load.products[0]:
        return 0.0, 0.0, 0.0
    element = storage.element if load.narrow is None else load.narrow.bytes
    rate = machine.compute if load.narrow is None else machine.matmul
    peaks = Peaks(rate, machine.memory, element, storage.element, rate / machine.compute)
    forward, by_input, by_weight = (
        sum([product_seconds(shape, peaks, reached, batched=load.batched, narrow=load.narrow) for shape in side])
        for side in load.products
    )
    return forward, by_input, by_weight


def needed_flops(share: Share) -> float:
    """Matrix FLOPs that the model needs of an operator, forward and backward, whatever the kernels do."""
    flops = share.operator.flops(share.work)
    return (flops.forward + _backward(share, flops)) * _seen(flops)


def _backward(share: Share, flops: Flops) -> float:
    return flops.by_input * share.passes + flops.by_weight * share.learns


def _seen(flops: Flops) -> float:
    """The share of an operator's products that no mask hides."""
    return 1 - flops.masked / flops.forward if flops.forward else 1.0


class LayerLoad(NamedTuple):
    """The operators of a layer, and those of them whose forward runs once more in backward."""

    loads: tuple[Load, ...]
    again: tuple[bool, ...]
    launches: Launches
    """Of one micro-batch."""


def loads_of(
    shares: Iterable[Share], kernels: KernelSet, storage: Storage, narrow: Narrow | None = None
) -> tuple[Load, ...]:
    """What a layer's operators ask of a machine; `narrow` as in Load."""
    return tuple([load_of(share, kernels, storage, narrow) for share in shares])


def layer_load(shares: Iterable[Share], loads: tuple[Load, ...], recompute: Recompute) -> LayerLoad:
    """What a layer's operators ask of a machine, under a row's recompute."""
    again, launches = list[bool](), Launches()
    for share, load in zip(shares, loads, strict=True):
        learns = share.passes or share.learns
        again.append(learns and is_repeated(share, recompute))
        launches = launches.plus(Launches(load.launches, load.launches * (BACKWARD * learns + again[-1])))
    return LayerLoad(loads, tuple(again), launches)


def layer_seconds(layer: LayerLoad, seconds: Iterable[Seconds]) -> Seconds:
    """The computing of one layer's operators for one micro-batch, on one device, by `operator_seconds` of each."""
    found = Seconds()
    for one, again in zip(seconds, layer.again, strict=True):
        found = found.plus(one._replace(recompute=one.forward * again))
    return found
