"""Cluster: what it runs on. Pools of equal devices, the links inside and between them; facts with source and date."""

import math
from collections.abc import Collection
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from meshwright.document import Document, Record
from meshwright.errors import did_you_mean
from meshwright.explain import Place, misplaced
from meshwright.units import Bandwidth, Bytes, Flag, PositiveFloat, PositiveInt, Rate, Seconds

MAX_DEVICES = 2**20
MAX_POOLS = 64
Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


class Origin(Record):
    """Where a figure is from."""

    source: str
    date: str


class Facts(Record):
    """A record of figures, which says where they are from."""

    source: str = ""
    date: str = ""
    """Of the source: when it was published, measured or looked up."""
    origins: dict[str, Origin] = Field(default_factory=dict)
    """Fields that are from elsewhere than `source`."""

    @model_validator(mode="after")
    def _origins_are_of_fields(self) -> Self:
        for name in self.origins:
            _known(name, type(self).model_fields, ("origins", name), "field")
        return self

    @model_serializer(mode="wrap")
    def _figures_first(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = write(self)
        return dict(sorted(data.items(), key=lambda item: item[0] in Facts.model_fields))

    def origin(self, field: str) -> Origin:
        """Where the figures of a field are from."""
        return self.origins.get(field) or Origin(source=self.source, date=self.date)


class Engine(Record):
    """What peaks are made of: equal units that each do so many FLOP in a clock."""

    units: PositiveInt
    """Multiprocessors, compute units, matrix units or cores."""
    clock: PositiveFloat
    """Hertz, at boost."""
    flops_per_clock: dict[Dtype, PositiveInt]
    """Dense matrix FLOP of one unit in one clock."""

    def peak(self, dtype: Dtype) -> float:
        """FLOP per second of all units. Raises KeyError."""
        return self.units * self.clock * self.flops_per_clock[dtype]


class Device(Facts):
    """One accelerator, or one CPU process, by its public figures."""

    memory: Annotated[Bytes, Field(gt=0)]
    """Bytes in all, as its driver reports them (nvidia-smi's memory.total), which is more than the name says."""
    memory_bandwidth: Bandwidth
    """Bytes per second to its own memory."""
    peak: dict[Dtype, Rate]
    """Dense matrix FLOP per second by dtype."""
    engines: tuple[Engine, ...] = ()
    """What peaks can be derived from, where a source says; other dtypes may run at another clock."""
    backend: Literal["nccl", "rccl", "gloo", "xla"] = "nccl"


class Link(Facts):
    """A way between devices: what one member of it can send per second, and how long a message takes at least."""

    bandwidth: Bandwidth
    """Bytes per second in one direction, for each device, or for each card where the level counts cards."""
    latency: Seconds
    reduces: Flag = False
    """True where the switch itself can reduce (NVSwitch SHARP)."""
    lines: PositiveInt | None = None
    """Direct lines to peers that make up the bandwidth, where there is no switch: of a few members, each reaches the
    others over as many lines.
    """

    def among(self, members: int) -> "Link":
        """The link as so many members get it."""
        share = min(1.0, (members - 1) / self.lines) if self.lines else 1.0
        return self.model_copy(update={"bandwidth": self.bandwidth * share}) if 0 < share < 1 else self


class Level(Record):
    """`size` units of the level below (devices, at the first level), joined by a link."""

    name: str
    size: PositiveInt
    link: str
    cards: PositiveInt | None = None
    """Links that lead out of one unit below, shared by its devices; none: one per device."""


class Host(Facts):
    """What a node lends its devices: memory for what is offloaded, and the way there. A node is one unit of the pool's
    first level.
    """

    memory: Annotated[Bytes, Field(gt=0)]
    """Bytes of one node."""
    memory_bandwidth: Bandwidth | None = None
    """Bytes per second of one node's memory."""
    link: str
    cards: PositiveInt | None = None
    """Links between the devices of a node and its memory, which they share; none: one per device."""


class Pool(Record):
    """Equal devices under a hierarchy of levels, innermost first."""

    name: str
    device: str
    region: str | None = None
    """Where it stands: one of the cluster's `regions`."""
    levels: Annotated[tuple[Level, ...], Field(min_length=1, max_length=8)]
    compute_units: PositiveFloat | None = None
    """Devices' worth of computing that all of the pool share (4 CPU ranks on 2 cores: 2); none: each has its own."""
    host: Host | None = None
    price_per_device_hour: PositiveFloat | None = None
    """US dollars, with `price_source` and `price_date`."""
    price_source: str = ""
    price_date: str = ""

    @property
    def size(self) -> int:
        """Devices."""
        return math.prod(level.size for level in self.levels)


class Across(Record):
    """The link between two pools."""

    between: tuple[str, str]
    link: str
    cards: PositiveInt | None = None


Row = tuple[Bandwidth | None, ...]
Delays = tuple[Seconds | None, ...]


class Regions(Facts):
    """How places far apart reach each other, as matrices: a row is what one region sends, a column what one receives,
    in the order of `names`. The diagonal is for pools of one region; null where `across` joins them, or there is one.
    """

    names: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_POOLS)]
    bandwidth: tuple[Row, ...]
    """Bytes per second from a row's region to a column's."""
    latency: tuple[Delays, ...]
    shared: Flag = False
    """True: all nodes of a pool share one such way; false: each node has one."""

    @model_validator(mode="after")
    def _matrices_are_square_and_alike(self) -> Self:
        if len(set(self.names)) != len(self.names):
            raise misplaced(("names",), f"two regions have one name: {', '.join(self.names)}")
        size = len(self.names)
        for field in ("bandwidth", "latency"):
            rows = getattr(self, field)
            if len(rows) != size or any(len(row) != size for row in rows):
                raise misplaced((field,), f"{size} regions need {size} rows of {size}")
        for at in range(size):
            for to in range(size):
                given = self.bandwidth[at][to] is not None, self.latency[at][to] is not None
                if given[0] != given[1] or (at != to and not given[0]):
                    field = "latency" if given[0] else "bandwidth"
                    raise misplaced((field, at, to), f"'{self.names[at]}' to '{self.names[to]}' has no {field}")
        return self

    def link(self, sender: str | None, receiver: str | None) -> Link | None:
        """The way from one region to another, or inside of one; none where the matrix has no entry."""
        if sender not in self.names or receiver not in self.names:
            return None
        row, column = self.names.index(sender), self.names.index(receiver)
        bandwidth, latency = self.bandwidth[row][column], self.latency[row][column]
        if bandwidth is None or latency is None:
            return None
        return Link(bandwidth=bandwidth, latency=latency, source=self.source, date=self.date)


class Route(Record):
    """How two or more devices reach each other: the widest level that they cross, with its link."""

    link: Link
    link_name: str
    cards: int | None
    unit: int
    """Devices in one unit below the level (they share its cards); 1 at the innermost. Between pools: those of the
    larger unit.
    """


class Cluster(Document):
    """Pools of devices, numbered from 0 in the order of the pools; rank r runs on device r."""

    noun: ClassVar[str] = "cluster"
    provenance: ClassVar[frozenset[str]] = frozenset(
        {"source", "date", "origins", "engines", "price_per_device_hour", "price_source", "price_date"}
    )
    """A plan is for no other cluster where a price or the reason for a peak is."""
    meshwright_cluster: Literal[1] = 1
    name: str
    devices: dict[str, Device]
    links: dict[str, Link]
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=MAX_POOLS)]
    across: tuple[Across, ...] = ()
    """Links between pools, one for each pair that `regions` does not join."""
    regions: Regions | None = None

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
            if pool.host is not None:
                _known(pool.host.link, self.links, ("pools", at, "host", "link"), "link")
            if pool.region is not None:
                _known(pool.region, self.regions.names if self.regions else (), ("pools", at, "region"), "region")
        for at, across in enumerate(self.across):
            _known(across.link, self.links, ("across", at, "link"), "link")
            for place, end in enumerate(across.between):
                _known(end, names, ("across", at, "between", place), "pool")
        return self

    @model_validator(mode="after")
    def _pools_are_joined_once(self) -> "Cluster":
        joined = {frozenset(across.between) for across in self.across}
        for at, across in enumerate(self.across):
            if across.between[0] == across.between[1]:
                raise misplaced(("across", at, "between"), f"'{across.between[0]}' needs no link to itself")
            if self._apart(*across.between) is not None:
                raise misplaced(("across", at), f"'{' and '.join(across.between)}' are joined by 'regions' too")
        if len(joined) < len(self.across):
            raise misplaced(("across",), "two links join one pair of pools")
        for place, one in enumerate(self.pools):
            for other in self.pools[place + 1 :]:
                if frozenset((one.name, other.name)) not in joined and self._apart(one.name, other.name) is None:
                    raise misplaced(
                        ("pools",), f"'{one.name}' and '{other.name}' have no link between them: add one to 'across'"
                    )
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

    def route(self, ranks: "list[int] | tuple[int, ...]", *, one_way: bool = False) -> Route:
        """The slowest way that these devices must cross to talk: the level at which they all meet, or the link
        between pools; `one_way`: where only the first of them sends.
        """
        lowest, highest = min(ranks), max(ranks)
        pool = self.pool_of(lowest)
        if self.pool_of(highest) is not pool:
            pools = list({(each := self.pool_of(rank)).name: each for rank in ranks}.values())
            return self._between(pools, pools[:1] if one_way else pools)
        start = self.starts[self.pools.index(pool)]
        unit = 1
        for level in pool.levels:
            wide = unit * level.size
            if (lowest - start) // wide == (highest - start) // wide:
                break
            unit = wide
        link = self.links[level.link].among(len({(rank - start) // unit for rank in ranks}))
        return Route(link=link, link_name=level.link, cards=level.cards, unit=unit)

    def _between(self, pools: list[Pool], senders: list[Pool]) -> Route:
        """The slowest of the ways from some pools to the others, with the longest latency."""
        routes = [
            self._apart(sender.name, other.name) or self._joined(sender.name, other.name)
            for sender in senders
            for other in pools
            if other is not sender
        ]
        slowest = min(routes, key=lambda route: route.link.bandwidth * (route.cards or route.unit) / route.unit)
        latency = max(route.link.latency for route in routes)
        return slowest.model_copy(update={"link": slowest.link.model_copy(update={"latency": latency})})

    @cached_property
    def _by_name(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.pools}

    def _joined(self, sender: str, receiver: str) -> Route:
        """The way that `across` gives for two pools."""
        way = next(way for way in self.across if set(way.between) == {sender, receiver})
        return Route(link=self.links[way.link], link_name=way.link, cards=way.cards, unit=self._node(sender, receiver))

    def _apart(self, sender: str, receiver: str) -> Route | None:
        """The way that `regions` gives from one pool to another, if any."""
        one, other = self._by_name[sender], self._by_name[receiver]
        link = self.regions.link(one.region, other.region) if self.regions else None
        if self.regions is None or link is None:
            return None
        unit = max(one.size, other.size) if self.regions.shared else self._node(sender, receiver)
        return Route(link=link, link_name=f"{one.region} > {other.region}", cards=1, unit=unit)

    def _node(self, *pools: str) -> int:
        """Devices of a node, in the pool where it has the most: the pool whose devices get least of its cards."""
        return max(self._by_name[pool].levels[0].size for pool in pools)


def _known(name: str, known: Collection[str], place: Place, noun: str) -> None:
    if name not in known:
        raise misplaced(place, f"no {noun} is called '{name}'; {did_you_mean(name, known)}")
