"""The fastest way to deal options out to equal layers within a limit of bytes."""

from typing import NamedTuple

import numpy as np

from meshwright.search.frontier import Floats, Integers, repeated


class Fastest(NamedTuple):
    """For each limit: the least seconds, infinity where nothing fits, and how many layers take each option."""

    seconds: Floats
    counts: Integers


class Knapsack:
    """So many equal layers, each with one of these options [options, (seconds, bytes)].

    With up to three options, for each number of layers that take the smallest, as many as must take the second rather
    than the largest, exactly. More options go by their frontier.

    >>> full, selective, none = (5.0, 1.0), (4.0, 3.0), (3.0, 6.0)
    >>> found = Knapsack(np.array([full, selective, none]), 4).within(np.array([24.0, 21.0, 3.0]))
    >>> found.seconds.tolist(), found.counts.tolist()
    ([12.0, 13.0, inf], [[0, 0, 4], [0, 1, 3], [0, 0, 0]])
    """

    def __init__(self, costs: Floats, layers: int) -> None:
        self._costs, self._layers = costs, layers
        if len(costs) > 3:
            return
        order = np.argsort(-costs[:, 1], kind="stable")
        self._order = order[np.minimum(np.arange(3), len(order) - 1)]
        (fast, large), (middle, medium), (slow, small) = costs[self._order].tolist()
        smallest = np.arange(layers + 1)
        self._rest = layers - smallest
        self._need = self._rest * large + smallest * small
        self._seconds = self._rest * fast + smallest * slow
        self._saved, self._more = large - medium, middle - fast

    def within(self, rooms: Floats) -> Fastest:
        """The fastest for each of some limits of bytes."""
        if len(self._costs) > 3:
            return _by_frontier(self._costs, self._layers, rooms)
        over = np.maximum(self._need - rooms[:, None], 0.0)
        none = np.where(over > 0, self._layers + 1.0, 0.0)
        middle = np.ceil(over / self._saved - 1e-9) if self._saved > 0 else none
        seconds = np.where(middle <= self._rest, self._seconds + middle * self._more, np.inf)
        best, rows = seconds.argmin(axis=1), np.arange(len(rooms))
        found, counts = seconds[rows, best], np.zeros((len(rooms), len(self._costs)), dtype=np.int64)
        fits = np.isfinite(found)
        taken = np.where(fits, middle[rows, best], 0.0).astype(np.int64)
        numbers = np.where(fits, self._rest[best] - taken, 0), taken, np.where(fits, best, 0)
        for option, number in zip(self._order, numbers, strict=True):
            counts[rows, option] += number
        return Fastest(found, counts)


def compositions(total: int, parts: int) -> Integers:
    """All ways to deal so many out to so many parts.

    >>> compositions(2, 2).tolist()
    [[0, 2], [1, 1], [2, 0]]
    """
    if parts == 1:
        return np.array([[total]])
    rows = [np.insert(compositions(total - first, parts - 1), 0, first, axis=1) for first in range(total + 1)]
    return np.concatenate(rows)


def _by_frontier(costs: Floats, layers: int, rooms: Floats) -> Fastest:
    front = repeated(costs, layers)
    seconds, counts = np.full(len(rooms), np.inf), np.zeros((len(rooms), len(costs)), dtype=np.int64)
    for row, room in enumerate(rooms):
        fits = np.flatnonzero(front.costs[:, 1] <= room)
        if len(fits):
            best = fits[np.argmin(front.costs[fits, 0])]
            seconds[row], counts[row] = front.costs[best, 0], front.counts[best]
    return Fastest(seconds, counts)
