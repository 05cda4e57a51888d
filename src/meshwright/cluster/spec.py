"""Cluster: what it runs on. Pools of equal devices, the links inside and between them; facts with source and date."""

import math
from collections.abc import Collection
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from meshwright.document import Document, Record
from meshwright.errors import did_you_mean
from meshwright.explain import Place, misplaced
from meshwright.units import Bandwidth, Bytes, Flag, PositiveFloat, PositiveInt, Rate, Seconds

MAX_DEVICES = 2**20
MAX_POOLS = 64
Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


class Device(Record):
    """One accelerator, or one CPU process, by its public figures."""

    memory: Annotated[Bytes, Field(gt=0)]
    memory_bandwidth: Bandwidth
    """Bytes per second to its own memory."""
    peak: dict[Dtype, Rate]
    """Dense matrix FLOP per second by dtype."""
    backend: Literal["nccl", "rccl", "gloo", "xla"] = "nccl"
    source: str = ""
    date: str = ""


class Link(Record):
    """A way between devices: what one member of it can send per second, and how long a message takes at least."""

    bandwidth: Bandwidth
    """Bytes per second in one direction, for each device, or for each card where the level counts cards."""
    latency: Seconds
    reduces: Flag = False
    """True where the switch itself can reduce (NVSwitch SHARP)."""
    source: str = ""
    date: str = ""


class Level(Record):
    """`size` units of the level below (devices, at the first level), joined by a link."""

    name: str
    size: PositiveInt
    link: str
    cards: PositiveInt | None = None
    """Links that lead out of one unit below, shared by its devices; none: one per device."""


class Pool(Record):
    """Equal devices under a hierarchy of levels, innermost first."""

    name: str
    device: str
    levels: Annotated[tuple[Level, ...], Field(min_length=1, max_length=8)]
    compute_units: PositiveFloat | None = None
    """Devices' worth of computing that all of the pool share (4 CPU ranks on 2 cores: 2); none: each has its own."""
    price_per_device_hour: PositiveFloat | None = None
    """US dollars, with `price_source`."""
    price_source: str = ""

    @property
    def size(self) -> int:
        """Devices."""
        return math.prod(level.size for level in self.levels)


class Across(Record):
    """The link between two pools."""

    between: tuple[str, str]
    link: str
    cards: PositiveInt | None = None


class Route(Record):
    """How two or more devices reach each other: the widest level that they cross, with its link."""

    link: Link
    link_name: str
    cards: int | None
    unit: int
    """Devices in one unit below the level (they share its cards); 1 at the innermost."""


class Cluster(Document):
    """Pools of devices, numbered from 0 in the order of the pools; rank r runs on device r."""

    noun: ClassVar[str] = "cluster"
    provenance: ClassVar[frozenset[str]] = frozenset({"source", "date", "price_source"})
    meshwright_cluster: Literal[1] = 1
    name: str
    devices: dict[str, Device]
    links: dict[str, Link]
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=MAX_POOLS)]
    across: tuple[Across, ...] = ()
    """Links between pools, one for each pair."""

    @model_validator(mode="after")
    def _has_a_size_to_handle(self) -> "Cluster":
        if self.size > MAX_DEVICES:
            raise misplaced(("pools",), f"more devices in all than can be planned for, which is {MAX_DEVICES:,}")
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> "Cluster":
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise misplaced(("pools",), f"two pools have one name: {', '.join(names)}")
        for at, pool in enumerate(self.pools):
            _known(pool.device, self.devices, ("pools", at, "device"), "device")
            for inside, level in enumerate(pool.levels):
                _known(level.link, self.links, ("pools", at, "levels", inside, "link"), "link")
        for at, across in enumerate(self.across):
            _known(across.link, self.links, ("across", at, "link"), "link")
            for place, end in enumerate(across.between):
                _known(end, names, ("across", at, "between", place), "pool")
        joined = {frozenset(across.between) for across in self.across}
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                if frozenset((one, other)) not in joined:
                    raise misplaced(("pools",), f"'{one}' and '{other}' have no link between them: add one to 'across'")
        return self

    @cached_property
    def size(self) -> int:
        """Devices in all."""
        return sum(pool.size for pool in self.pools)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first device number of each pool."""
        starts = [0]
        for pool in self.pools:
            starts.append(starts[-1] + pool.size)
        return tuple(starts[:-1])

    def pool_of(self, rank: int) -> Pool:
        """The pool of a device. Raises IndexError."""
        for pool, start in zip(self.pools, self.starts, strict=True):
            if start <= rank < start + pool.size:
                return pool
        raise IndexError(f"device {rank} of a cluster of {self.size}")

    def device_of(self, rank: int) -> Device:
        """The device that a rank runs on."""
        return self.devices[self.pool_of(rank).device]

    def route(self, ranks: "list[int] | tuple[int, ...]") -> Route:
        """The slowest way that these devices must cross to talk: the level at which they all meet, or the link
        between pools.
        """
        pools = {self.pool_of(rank).name for rank in ranks}
        if len(pools) > 1:
            ways = [way for way in self.across if set(way.between) <= pools]
            slowest = min(ways, key=lambda way: self.links[way.link].bandwidth)
            unit = min(pool.levels[0].size for pool in self.pools if pool.name in pools)
            return Route(link=self.links[slowest.link], link_name=slowest.link, cards=slowest.cards, unit=unit)
        pool = self.pool_of(ranks[0])
        start = self.starts[self.pools.index(pool)]
        unit = 1
        for level in pool.levels:
            wide = unit * level.size
            if len({(rank - start) // wide for rank in ranks}) == 1:
                break
            unit = wide
        return Route(link=self.links[level.link], link_name=level.link, cards=level.cards, unit=unit)


def _known(name: str, known: Collection[str], place: Place, noun: str) -> None:
    if name not in known:
        raise misplaced(place, f"no {noun} is called '{name}'; {did_you_mean(name, known)}")
