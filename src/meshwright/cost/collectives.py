"""How long a collective takes: steps by latency, bytes by bandwidth, over the links that its ranks must cross.

n ranks, B bytes (see `volumes.Collective`), a latency, b bandwidth. Rings are those of Thakur, Rabenseifner and Gropp
2005, "Optimization of Collective Communication Operations in MPICH", section 4; each takes the faster of a
ring and of trees (Sanders, Speck and Traeff 2009), as NCCL does for few bytes and many ranks, and of the
switch where that adds up (NVLink SHARP: each rank pulls the sum of its part through the switch and has it spread;
NVIDIA 2022, "NVLink-Network Switch", Hot Chips 34).

    all_reduce                     2 (n - 1) a + 2 (n - 1) / n B / b    or 2 log2(n) a + 2 B / b
      in the switch                        2 a +   (n + 1) / n B / b
    all_gather, reduce_scatter       (n - 1) a +   (n - 1) / n B / b    or log2(n) a + B / b
    all_to_all                       (n - 1) a +   (n - 1) / n B / b    pairwise exchange
    exchange                         (n - 1) a +               B / b    B is what is received
    p2p                                    a +               B / b

b depends on how the bytes travel (`TRAFFIC`). Where a level of c cards of bandwidth w leads out of units of u devices,
and the other devices of a unit form groups like the one at hand, a group with m members in a unit gets m / u of the
cards. The slowest level decides, of a device alone in its node too: what leaves the node passes its link there first.

    ring    One stream enters and one leaves a unit; NCCL runs as many rings as there are cards, so a stream gets all of
            the group's: b = w c m / u.
    spread  Of what each member sends, (n - m) / n leaves its unit, over the cards that m members share:
            b = w c / u (n - 1) / (n - m), and for an exchange, whose bytes may all be from elsewhere, b = w c / u.
            (NVIDIA 2022, "Doubling all2all performance with NCCL 2.12".)
    hop     Each member passes its own message on to the next. The f of them that leave a unit share its cards, and a
            sender uses no more than its nearest (same source): b = w min(max(1, c / u), c m / u / f).
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.cluster.spec import MAX_DEVICES, MAX_POOLS, Cluster, Pool, Route
from meshwright.cost.calibration import Calibration
from meshwright.cost.flows import Kind

Integers: TypeAlias = NDArray[np.int64]
Traffic = Literal["ring", "spread", "scatter", "hop"]
TRAFFIC: dict[Kind, Traffic] = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "broadcast": "ring",
    "all_to_all": "spread",
    "exchange": "scatter",
    "p2p": "hop",
}
"""How the bytes of each kind travel."""

_SCATTERED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Kinds that move (n - 1) / n of their bytes."""


class Way(NamedTuple):
    """What one process group gets of the links for one kind of traffic: bytes per second, and the latency of a step."""

    bandwidth: float
    latency: float
    reduces: bool = False
    """True where every switch on the way adds up what comes in."""
    around: float | None = None
    """The latency of a ring's step in the mean, most of which stay inside of nodes; none: that of any step."""

    @property
    def ring_latency(self) -> float:
        """Seconds of a ring's step."""
        return self.latency if self.around is None else self.around

    def no_better_than(self, other: "Way") -> "Way":
        """The worse of both, in bandwidth and in latency."""
        return Way(
            min(self.bandwidth, other.bandwidth),
            max(self.latency, other.latency),
            self.reduces and other.reduces,
            max(self.ring_latency, other.ring_latency),
        )


def seconds(kind: Kind, size: float, ranks: int, way: Way) -> float:
    """The time of one collective of `size` bytes over `ranks` ranks.

    >>> round(seconds("all_reduce", 8e9, 8, Way(bandwidth=100e9, latency=1e-3)), 6)
    0.154
    >>> round(seconds("all_reduce", 8e9, 8, Way(bandwidth=100e9, latency=1e-3, reduces=True)), 6)
    0.092
    >>> seconds("all_gather", 8e9, 1, Way(bandwidth=100e9, latency=1e-3))
    0.0

    A broadcast goes once round a ring, whatever its size: NCCL has no tree for it (src/graph/tuning.cc).

    >>> round(seconds("broadcast", 8e9, 8, Way(bandwidth=100e9, latency=1e-3)), 6)
    0.087
    """
    if ranks <= 1:
        return 0.0
    moved = size * (ranks - 1) / ranks if kind in _SCATTERED else size
    if kind == "p2p":
        return way.latency + moved / way.bandwidth
    if TRAFFIC[kind] != "ring":
        return (ranks - 1) * way.latency + moved / way.bandwidth
    ring = (ranks - 1) * way.ring_latency + moved / way.bandwidth
    if kind == "broadcast":
        return ring
    once = min(ring, math.ceil(math.log2(ranks)) * way.latency + size / way.bandwidth)
    if kind != "all_reduce":
        return once
    in_switch = 2 * way.latency + size * (1 + 1 / ranks) / way.bandwidth
    return min(2 * once, in_switch) if way.reduces else 2 * once


class Network:
    """The links of a cluster, as process groups of a plan get them.

    Two nodes of eight H100 have 8 cards of w = 50 GB/s each. All 16 devices, m = 8 of a node: a ring gets
    50 x 8 x 8 / 8, less than the 450 of NVLink inside; of what each spreads, 8 in 15 leave its node over its own card;
    and a hop leaves a node once, and reaches one card.

    >>> from meshwright.cluster.shorthand import parse_cluster
    >>> def rates(network: Network, *ranks: int) -> list[float]:
    ...     kinds: list[Traffic] = ["ring", "spread", "scatter", "hop"]
    ...     return [network.way(ranks, traffic).bandwidth / 1e9 for traffic in kinds]
    >>> rates(Network(parse_cluster("2x8xh100")), *range(16))
    [400.0, 93.75, 50.0, 50.0]

    Two devices of each (m = 2, n = 4, a hop's f = 1), and one of each, beside seven such pairs on the other cards:

    >>> rates(Network(parse_cluster("2x8xh100")), 0, 1, 8, 9), rates(Network(parse_cluster("2x8xh100")), 0, 8)
    ([100.0, 75.0, 50.0, 50.0], [50.0, 50.0, 50.0, 50.0])

    Nodes of four A10G have one card of 12.5 GB/s. Two devices of a node get half of it, for the one message of a ring's
    hop too; where ranks alternate between the nodes both messages of a node leave it, and share that half.

    >>> a10g = Network(parse_cluster("2x4xa10g"))
    >>> rates(a10g, 0, 1, 4, 5), rates(a10g, 0, 4, 1, 5)
    ([6.25, 4.6875, 3.125, 6.25], [6.25, 4.6875, 3.125, 3.125])

    A lone message between the nodes has the card to itself; four at once have a quarter each:

    >>> [a10g.crossing(pairs).bandwidth / 1e9 for pairs in ([(0, 4)], [(0, 4), (1, 5), (2, 6), (3, 7)])]
    [12.5, 3.125]
    """

    def __init__(self, cluster: Cluster, calibration: Calibration | None = None) -> None:
        self.cluster = _as_reached(cluster, calibration) if calibration else cluster
        self._starts, self._sizes, self._below, self._node, self._first = (
            np.array(each)
            for each in (
                cluster.starts,
                [pool.size for pool in cluster.pools],
                [_below(pool) for pool in cluster.pools],
                [_node(pool) for pool in cluster.pools],
                [self.cluster.links[pool.levels[0].link].bandwidth for pool in cluster.pools],
            )
        )
        # What leaves a node is no sooner there than what stays, whatever was read off for each link by itself.
        self._step = np.array([self.cluster.links[pool.levels[0].link].latency for pool in cluster.pools])
        self._ways: dict[tuple[bytes, Traffic, int], Way] = {}
        self._memo: dict[object, Way] = {}

    def once(self, key: object, make: Callable[[], Way]) -> Way:
        """The way that `make` gives, found once for each key."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def way(self, ranks: ArrayLike, traffic: Traffic = "ring") -> Way:
        """What a process group gets, while the other devices of its nodes form groups like it."""
        return self.slowest(np.asarray(ranks)[None], traffic)

    def slowest(self, groups: ArrayLike, traffic: Traffic = "ring") -> Way:
        """The worst way of several process groups of one size that run at the same time: [groups, ranks]."""
        worst = Way(math.inf, 0.0, reduces=True)
        patterns = self.unlike(np.asarray(groups))
        for pattern in patterns if patterns.shape[1] > 1 else ():
            worst = worst.no_better_than(self._known(pattern, traffic, len(pattern)))
        return worst

    def unlike(self, groups: Integers) -> Integers:
        """Of process groups [groups, ranks], the pattern of each kind of lying once."""
        found = self._patterns(groups)
        steps = found - found[:, :1]
        if (steps == steps[0]).all():  # told apart by their first ranks
            return found[np.unique(found[:, 0], return_index=True)[1]]
        return np.unique(found, axis=0)

    def _known(self, pattern: Integers, traffic: Traffic, whole: int) -> Way:
        key = pattern.tobytes(), traffic, whole
        if key not in self._ways:
            self._ways[key] = self._measure(pattern, traffic, whole)
        return self._ways[key]

    def _measure(self, ranks: Integers, traffic: Traffic, whole: int) -> Way:
        """The way of some ranks of a group of `whole`, level by level from the widest."""
        out = _out(self.cluster.route(ranks.tolist()))
        _, units, members = np.unique(self._units(ranks, out.unit), return_inverse=True, return_counts=True)
        fewest = int(members.min())
        match traffic:
            case "ring":
                bandwidth = out.own * fewest
            case "spread":
                bandwidth = out.own * (whole - 1) / (whole - fewest)
            case "scatter":
                bandwidth = out.own
            case "hop":
                bandwidth = self._hop(ranks, units, members, out)
        alone = self._first[self._pools(ranks[members[units] == 1])].tolist()
        latency = max(out.latency, float(self._step[self._pools(ranks)].max()))
        way = Way(min([bandwidth, *alone]), latency, out.reduces)
        within = [self._known(each, traffic, whole) for each in self._inside(ranks, units, members)]
        for inner in within:
            way = way.no_better_than(inner)
        # Of a ring's steps one leaves each unit; the others stay inside.
        inner_latency = max((inner.ring_latency for inner in within), default=latency)
        around = (len(members) * latency + (len(ranks) - len(members)) * inner_latency) / len(ranks)
        return way._replace(around=around)

    def _inside(self, ranks: Integers, units: Integers, members: Integers) -> Iterator[Integers]:
        """Of the ranks of each unit that has several, the pattern of each kind of lying once."""
        order = np.argsort(units, kind="stable")
        sizes = members[units[order]]
        for size in set(members.tolist()) - {1}:
            yield from self.unlike(ranks[order][sizes == size].reshape(-1, size))

    def _hop(self, ranks: Integers, units: Integers, members: Integers, out: "_Out") -> float:
        """Bytes per second of the slowest message from one rank to the next, over one level."""
        leaves = units != np.roll(units, -1)
        pairs = np.stack((ranks, np.roll(ranks, -1)), axis=1)[leaves]
        routes = [self.cluster.route(pair, one_way=True) for pair in self.unlike(pairs).tolist()]
        link = min(route.link.bandwidth for route in routes)
        leaving = np.bincount(units[leaves], minlength=len(members))
        shares = out.cards / out.unit * members[leaving > 0] / leaving[leaving > 0]
        return float(link * min(out.nearest, shares.min()))

    def crossing(self, pairs: ArrayLike) -> Way:
        """What the busiest device gets of the way between two groups, of which each first sends to each second at the
        same time. Those that leave a node, or enter it, share its cards; none uses more than its nearest.
        """
        table = np.array(pairs)
        codes, kinds = np.unique(self._patterns(table) @ (MAX_DEVICES, 1), return_inverse=True)
        patterns = [divmod(code, MAX_DEVICES) for code in codes.tolist()]
        outs = [_out(self.cluster.route(pattern, one_way=True)) for pattern in patterns]
        bandwidth, nearest, cards, unit = (
            np.array([getattr(out, name) for out in outs])[kinds] for name in ("bandwidth", "nearest", "cards", "unit")
        )
        busiest = max(int(np.unique(side, return_counts=True)[1].max()) for side in table.T)
        slowest, latency = math.inf, max(out.latency for out in outs)
        for ranks in table.T:
            pools = self._pools(ranks)
            latency = max(latency, float(self._step[pools].max()))
            units = (unit * MAX_POOLS + pools) * MAX_DEVICES + (ranks - self._starts[pools]) // unit
            _, places, counts = np.unique(units, return_inverse=True, return_counts=True)
            most = bandwidth * np.minimum(nearest, cards * busiest / counts[places])
            slowest = min(slowest, float(np.minimum(most, self._first[pools]).min()))
        return Way(slowest, latency)

    def _patterns(self, groups: Integers) -> Integers:
        """As `pattern`, for many groups at once: [groups, ranks]."""
        moved: Integers = groups - self._shifts(groups[:, 0], groups.min(axis=1), groups.max(axis=1))[:, None]
        return moved

    def _shifts(self, first: Integers, lowest: Integers, highest: Integers) -> Integers:
        """As `shift`, for many at once."""
        pools = self._pools(first)
        starts, below = self._starts[pools], self._below[pools]
        inside = (lowest >= starts) & (highest < starts + self._sizes[pools])
        found: Integers = (lowest - starts) // below * below * inside
        return found

    def nodes(self, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node: devices that links of the innermost kind join, whatever levels these make up."""
        table, found = np.asarray(ranks), dict[int, list[int]]()
        units = self._units(table, self._node[self._pools(table)])
        for rank, unit in zip(table.tolist(), units.tolist(), strict=True):
            found.setdefault(unit, []).append(rank)
        return tuple(tuple(node) for node in found.values())

    def _units(self, ranks: Integers, size: int | Integers) -> Integers:
        """A number for the unit of so many devices that each device is in."""
        pools = self._pools(ranks)
        found: Integers = pools * MAX_DEVICES + (ranks - self._starts[pools]) // size
        return found

    def latency(self, ranks: Sequence[int]) -> float:
        """Seconds of a step over the widest of the links between these ranks."""
        lowest, highest = min(ranks), max(ranks)
        between = self.cluster.starts[self._pool(lowest) + 1 : self._pool(highest)]
        return self.way((lowest, *between, highest)).latency

    def pattern(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The same ranks, moved to the first place in their pool where they lie in the same way."""
        return tuple(self._patterns(np.array([ranks]))[0].tolist())

    def shift(self, first: int, lowest: int, highest: int) -> int:
        """How far ranks, by the first, the lowest and the highest of them, lie from the first such place in their pool;
        none where they lie in several.
        """
        return int(self._shifts(*(np.array([rank]) for rank in (first, lowest, highest)))[0])

    def _pool(self, rank: int) -> int:
        """The number of a device's pool."""
        return bisect.bisect_right(self.cluster.starts, rank) - 1

    def _pools(self, ranks: Integers) -> Integers:
        """The numbers of devices' pools."""
        return np.searchsorted(self._starts, ranks, side="right") - 1


def _as_reached(cluster: Cluster, calibration: Calibration) -> Cluster:
    """The cluster with links as fast as the calibration says that they get."""
    links = {}
    for name, link in cluster.links.items():
        reached = calibration.link(name)
        latency = link.latency if reached.latency is None else reached.latency
        links[name] = link.model_copy(
            update={
                "bandwidth": link.bandwidth * reached.bandwidth,
                "latency": latency,
                "reduces": link.reduces and reached.in_switch,
            }
        )
    return cluster.model_copy(update={"links": links})


def _node(pool: Pool) -> int:
    """Devices that the innermost kind of link joins: 8 of an HGX node, the 72 of an NVL72 rack."""
    inner = itertools.takewhile(lambda level: level.link == pool.levels[0].link, pool.levels)
    return math.prod(level.size for level in inner)


def _below(pool: Pool) -> int:
    """Devices in one unit below a pool's widest level."""
    return math.prod(level.size for level in pool.levels[:-1])


class _Out(NamedTuple):
    """The widest level on a way: what leads out of the units below it."""

    bandwidth: float
    """Of one card."""
    latency: float
    cards: int
    unit: int
    """Devices that share the cards."""
    reduces: bool

    @property
    def own(self) -> float:
        """A device's share of the cards, in bytes per second."""
        return self.bandwidth * self.cards / self.unit

    @property
    def nearest(self) -> float:
        """Cards that one device reaches without help."""
        return max(1.0, self.cards / self.unit)


def _out(route: Route) -> _Out:
    """Where nothing is said of cards, each device has its own."""
    cards = route.cards if route.cards is not None else route.unit
    return _Out(route.link.bandwidth, route.link.latency, cards, route.unit, route.link.reduces)
