"""What a run of equal layers costs at least within a capacity, from layers that may be divided.

Each option of a layer is a point: what it takes (bytes) and what it costs (seconds). Were layers divided over options,
the least cost of a run is that of a mean point on the lower hull of these points, between two neighbours (the linear
relaxation of the multiple-choice knapsack: Sinha and Zoltners 1979, Operations Research 27(3), section 2). The slope
there is the price of a byte. With a price every option has a reduced cost, cost + price x size less the least of these
over options; in a run that costs no more than a known one, reduced costs add up to no more than the gap between that
one and the bound (Dantzig 1963, chapter 12).
"""

from typing import NamedTuple

import numpy as np

from meshwright.search.frontier import Floats, Integers, repeated, undominated

_ROOM = 1e-12
"""A relative difference that rounding makes."""


class Mix(NamedTuple):
    """Whole layers next to the relaxation: so many of the larger of two options, the others of the smaller. One of each
    capacity.
    """

    small: Integers
    large: Integers
    of_large: Integers


class Hull:
    """The lower hull of options, from the smallest to the cheapest."""

    def __init__(self, costs: Floats, sizes: Floats) -> None:
        self.options = _lower_hull(costs, sizes)
        self.costs, self.sizes = costs[self.options], sizes[self.options]

    def bounds(self, layers: int, capacities: Floats) -> Floats:
        """The least cost of so many layers within each capacity; infinite where they do not fit.

        Four layers, of which two and a half could be fast:

        >>> hull = Hull(np.array([1.0, 3.0]), np.array([6.0, 2.0]))
        >>> hull.bounds(4, np.array([7.0, 8.0, 18.0, 30.0])).tolist()
        [inf, 12.0, 7.0, 4.0]
        """
        return layers * np.interp(capacities / layers, self.sizes, self.costs, left=np.inf)

    def price(self, layers: int, capacity: float) -> float:
        """What one more unit of capacity saves; nothing where all layers can take the cheapest.

        >>> Hull(np.array([1.0, 3.0]), np.array([6.0, 2.0])).price(4, 18.0)
        0.5
        """
        place = int(np.searchsorted(self.sizes, capacity / layers, side="right"))
        if place in (0, len(self.sizes)):
            return 0.0
        saved, taken = self.costs[place - 1] - self.costs[place], self.sizes[place] - self.sizes[place - 1]
        return float(saved / taken)

    def mixes(self, layers: int, capacities: Floats) -> Mix:
        """The whole layers next to the bound of each capacity, which has to hold the smallest ones.

        >>> hull = Hull(np.array([1.0, 3.0]), np.array([6.0, 2.0]))
        >>> [each.tolist() for each in hull.mixes(4, np.array([8.0, 18.0, 30.0]))]
        [[1, 1, 0], [0, 0, 0], [0, 2, 4]]
        """
        last = len(self.sizes) - 1
        small = np.clip(np.searchsorted(self.sizes, capacities / layers, side="right") - 1, 0, last)
        large = np.minimum(small + 1, last)
        between = self.sizes[large] - self.sizes[small]
        fitting = np.floor((capacities - layers * self.sizes[small]) / np.where(between > 0, between, 1.0))
        of_large = np.where(large == small, layers, np.clip(fitting, 0, layers)).astype(np.int64)
        return Mix(self.options[small], self.options[large], of_large)


def _lower_hull(costs: Floats, sizes: Floats) -> Integers:
    """The places of its options, from small to large, each cheaper than the one before and by less and less a byte."""
    found: list[int] = []
    for place in np.lexsort((costs, sizes)).tolist():
        if found and costs[place] >= costs[found[-1]]:
            continue
        while len(found) > 1 and not _turns(costs, sizes, found[-2], found[-1], place):
            found.pop()
        found.append(place)
    return np.array(found, dtype=np.int64)


def _turns(costs: Floats, sizes: Floats, first: int, middle: int, last: int) -> bool:
    """Whether the middle lies below the line from the first to the last."""
    before = (costs[middle] - costs[first]) * (sizes[last] - sizes[first])
    return bool(before < (costs[last] - costs[first]) * (sizes[middle] - sizes[first]))


def whole_near(costs: Floats, sizes: Floats, layers: int, capacity: float) -> Integers:
    """How many layers take each option in a good way next to the relaxation: the mix of its two options, and then, one
    layer after the other, what saves most in the room that is left. The layers of the smallest option have to fit.

    >>> whole_near(np.array([1.0, 2.0, 4.0]), np.array([7.0, 4.0, 1.0]), 5, 24.0).tolist()
    [1, 4, 0]
    """
    mix = Hull(costs, sizes).mixes(layers, np.array([capacity]))
    counts = np.zeros(len(costs), dtype=np.int64)
    counts[mix.small[0]] = layers - mix.of_large[0]
    counts[mix.large[0]] += mix.of_large[0]
    left = capacity - float(sizes @ counts)
    saved, taken = costs[:, None] - costs, sizes - sizes[:, None]
    while True:
        worth = np.where((counts[:, None] > 0) & (taken <= left), saved, 0.0)
        old, new = np.unravel_index(int(worth.argmax()), worth.shape)
        if worth[old, new] <= 0:
            return counts
        counts[old] -= 1
        counts[new] += 1
        left -= float(taken[old, new])


def cheapest(costs: Floats, sizes: Floats, layers: int, capacity: float) -> Integers:
    """How many layers take each option where they cost least within the capacity, exactly. The layers of the smallest
    option have to fit.

    The mix of 9 and 2 bytes comes to 12 seconds and leaves 5 bytes; the middle option, which is not on the hull, fills
    the room:

    >>> costs, sizes = np.array([1.0, 3.0, 4.0]), np.array([9.0, 5.0, 2.0])
    >>> whole_near(costs, sizes, 4, 19.0).tolist(), cheapest(costs, sizes, 4, 19.0).tolist()
    ([1, 1, 2], [1, 1, 2])
    """
    near = whole_near(costs, sizes, layers, capacity)
    most = np.array([float(costs @ near) * (1 + _ROOM)])
    _, ways = bounded_frontier(costs[:, None], sizes, layers, capacity, most)
    return ways[0] if len(ways) else near


def bounded_frontier(
    costs: Floats, sizes: Floats, layers: int, capacity: float, most: Floats
) -> tuple[Floats, Integers]:
    """What the undominated ways cost [ways, columns] and how many layers take each option [ways, options], of those
    ways that fit into the capacity and cost at most `most` in each column; exactly.

    Every column with a limit gets a price from its own relaxation; ways whose reduced costs are beyond the gap are
    dropped as parts already, and of the options those that no such way can have.

    Five layers in 20 bytes; of the 21 ways one takes at most 12 seconds:

    >>> costs, sizes = np.array([[1.0], [2.0], [4.0]]), np.array([7.0, 4.0, 1.0])
    >>> found, counts = bounded_frontier(costs, sizes, 5, 20.0, np.array([12.0]))
    >>> found.tolist(), counts.tolist()
    ([[10.0]], [[0, 5, 0]])
    """
    limited = np.flatnonzero(np.isfinite(most))
    reduced, gaps = np.zeros((len(costs), len(limited))), np.zeros(len(limited))
    for place, column in enumerate(limited):
        price = Hull(costs[:, column], sizes).price(layers, capacity)
        priced = costs[:, column] + price * sizes
        reduced[:, place] = priced - priced.min()
        gaps[place] = most[column] + price * capacity - layers * priced.min()
        # Room for what rounding adds to terms as large as these.
        gaps[place] += _ROOM * (abs(most[column]) + price * capacity)
    kept = np.flatnonzero((reduced <= gaps).all(axis=1))
    counts = np.zeros((0, len(costs)), dtype=np.int64)
    if not len(kept):
        return np.zeros((0, costs.shape[1])), counts
    columns = np.column_stack((costs[kept], sizes[kept], reduced[kept]))
    limits = np.concatenate((most, [capacity], gaps))
    found = repeated(columns, layers, limits, compared=costs.shape[1] + 1)
    best = undominated(found.costs[:, : costs.shape[1]])
    counts = np.zeros((len(best), len(costs)), dtype=np.int64)
    counts[:, kept] = found.counts[best]
    return found.costs[best, : costs.shape[1]], counts
