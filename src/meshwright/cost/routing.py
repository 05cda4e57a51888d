"""How many copies of a position travel to its experts: one for each, or one for each node and rank that has some.

A plain all-to-all sends a copy for every chosen expert. DeepEP sends one to each node with a chosen expert, over the
links between nodes, to the rank of the same place there, which hands it on to each rank with a chosen expert over the
links inside (DeepSeek-V3, arXiv 2412.19437, section 3.2.2). The way back is the same the other way round.
"""

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.model.operators import Experts


class Routing(NamedTuple):
    """Where the experts that a position chooses may lie."""

    experts: int
    """On each rank."""
    chosen: int
    groups: int = 1
    """Runs of experts, of which a position uses `used`."""
    used: int = 1

    def distinct(self, places: int, ranks: int) -> float:
        """The expected number of places with a chosen expert, of so many that divide the experts of so many ranks
        evenly: n (1 - C(E - E/n, k) / C(E, k)) for k distinct experts of E, each choice as likely. Where the model
        limits the groups, no more than the places of those that it uses: a bound, not a mean.

        Of DeepSeek-V3's 256 experts 8 are chosen, on 8 nodes of 8 ranks; its 4 of 8 groups lie on 4 nodes:

        >>> round(Routing(experts=4, chosen=8).distinct(8, 64), 2), round(Routing(4, 8).distinct(64, 64), 2)
        (5.29, 7.68)
        >>> Routing(4, 8, groups=8, used=4).distinct(8, 64)
        4
        """
        experts, missed = self.experts * ranks, 1.0
        for taken in range(self.chosen):
            missed *= max(0.0, experts - experts / places - taken) / (experts - taken)
        return min(places * (1 - missed), self.used * max(1, places / self.groups))


class Copies(NamedTuple):
    """Copies of each position that a rank sends, in the mean: between nodes, and inside of them."""

    outside: float
    inside: float


def routing_of(experts: Experts) -> Routing:
    """Of the experts that one rank holds."""
    return Routing(experts.count, experts.top_k, experts.groups, experts.used_groups)


def copies(routing: Routing, nodes: Sequence[Sequence[int]]) -> Copies:
    """`nodes` are the ranks of each. What stays on its own node or on its own rank does not travel there.

    >>> nodes = [range(8 * node, 8 * node + 8) for node in range(8)]
    >>> copies(Routing(4, 8, groups=8, used=4), nodes)[0], round(copies(Routing(4, 8), nodes)[1], 2)
    (3.5, 6.72)
    """
    count, widest, ranks = len(nodes), max(map(len, nodes)), sum(map(len, nodes))
    outside = routing.distinct(count, ranks) * (count - 1) / count
    return Copies(outside, routing.distinct(ranks, ranks) * (widest - 1) / widest)
