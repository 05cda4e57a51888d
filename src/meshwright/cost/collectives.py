"""How long a collective takes: steps by latency, bytes by bandwidth, over the links that its ranks must cross.

n ranks, B bytes (see `volumes.Collective`), a latency, b bandwidth. Rings are those of Thakur, Rabenseifner and Gropp
2005, "Optimization of Collective Communication Operations in MPICH", section 4; an all-reduce takes the faster of a
ring and of a pair of trees (Sanders, Speck and Traeff 2009), as NCCL does for few bytes and many ranks.

    all_reduce                     2 (n - 1) a + 2 (n - 1) / n B / b    or 2 log2(n) a + 2 B / b
    all_gather, reduce_scatter       (n - 1) a +   (n - 1) / n B / b
    all_to_all                       (n - 1) a +   (n - 1) / n B / b    pairwise exchange
    exchange                         (n - 1) a +               B / b    B is what is received
    broadcast                        (n - 1) a +               B / b    a pipelined chain
    p2p                                    a +               B / b
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshwright.cluster.spec import Cluster, Pool
from meshwright.cost.flows import Kind

_SCATTERED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Kinds that move (n - 1) / n of their bytes."""


class Way(NamedTuple):
    """What one process group gets of the links: bytes per second for each member, and the latency of a step."""

    bandwidth: float
    latency: float

    def no_better_than(self, other: "Way") -> "Way":
        """The worse of both, in bandwidth and in latency."""
        return Way(min(self.bandwidth, other.bandwidth), max(self.latency, other.latency))


def seconds(kind: Kind, size: float, ranks: int, way: Way) -> float:
    """The time of one collective of `size` bytes over `ranks` ranks.

    >>> round(seconds("all_reduce", 8e9, 8, Way(bandwidth=100e9, latency=1e-3)), 6)
    0.154
    >>> seconds("all_gather", 8e9, 1, Way(bandwidth=100e9, latency=1e-3))
    0.0
    """
    if ranks <= 1:
        return 0.0
    steps = 1 if kind == "p2p" else ranks - 1
    once = steps * way.latency + (size * (ranks - 1) / ranks if kind in _SCATTERED else size) / way.bandwidth
    if kind != "all_reduce":
        return once
    return 2 * min(once, math.ceil(math.log2(ranks)) * way.latency + size / way.bandwidth)


class Network:
    """The links of a cluster, as process groups of a plan get them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._sizes = [pool.size for pool in cluster.pools]
        self._below = [_below(pool) for pool in cluster.pools]
        self._ways: dict[tuple[int, ...], Way] = {}

    def way(self, ranks: Sequence[int]) -> Way:
        """What a process group gets, while the other devices of its nodes form groups like it.

        The cards that lead out of a node are shared by its devices, so a group with m of a node's n devices gets m / n
        of them; inside of the node it has its own links. The slowest link on the way decides.
        """
        key = self.pattern(tuple(ranks))
        if key not in self._ways:
            self._ways[key] = self._measure(key)
        return self._ways[key]

    def slowest(self, groups: Iterable[Sequence[int]]) -> Way:
        """The worst way of several process groups that run at the same time."""
        patterns = {self.pattern(tuple(ranks)) for ranks in groups}
        found = [self.way(pattern) for pattern in patterns if len(pattern) > 1]
        worst = Way(float("inf"), 0.0)
        for way in found:
            worst = worst.no_better_than(way)
        return worst

    def _measure(self, ranks: tuple[int, ...]) -> Way:
        route = self.cluster.route(ranks)
        units: dict[tuple[int, int], list[int]] = {}
        for rank in ranks:
            number = self._pool(rank)
            units.setdefault((number, (rank - self.cluster.starts[number]) // route.unit), []).append(rank)
        members = min(len(inside) for inside in units.values())
        cards = route.cards if route.cards is not None else route.unit
        way = Way(route.link.bandwidth * cards * members / route.unit, route.link.latency)
        for inside in {self.pattern(tuple(inside)) for inside in units.values()}:
            if len(inside) > 1:
                way = way.no_better_than(self.way(inside))
        return way

    def latency(self, ranks: Sequence[int]) -> float:
        """Seconds of a step over the widest of the links between these ranks."""
        lowest, highest = min(ranks), max(ranks)
        between = self.cluster.starts[self._pool(lowest) + 1 : self._pool(highest)]
        return self.way((lowest, *between, highest)).latency

    def pattern(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The same ranks, moved to the first place in their pool where they lie in the same way."""
        number = self._pool(ranks[0])
        start, lowest = self.cluster.starts[number], min(ranks)
        if lowest < start or max(ranks) >= start + self._sizes[number]:
            return ranks
        shift = (lowest - start) // self._below[number] * self._below[number]
        return tuple([rank - shift for rank in ranks]) if shift else ranks

    def _pool(self, rank: int) -> int:
        """The number of a device's pool."""
        return bisect.bisect_right(self.cluster.starts, rank) - 1


def _below(pool: Pool) -> int:
    """Devices in one unit below a pool's widest level."""
    return math.prod(level.size for level in pool.levels[:-1])
