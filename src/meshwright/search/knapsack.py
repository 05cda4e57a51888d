"""The fastest way to deal options out to equal layers within a limit of bytes."""

from typing import NamedTuple

import numpy as np

from meshwright.search.frontier import Floats, Integers, repeated


class Fastest(NamedTuple):
    """For each limit: the least seconds, infinity where nothing fits, and how many layers take each option."""

    seconds: Floats
    counts: Integers


def fastest_within(costs: Floats, layers: int, rooms: Floats) -> Fastest:
    """Of so many equal layers, each with one of these options [options, (seconds, bytes)], for each of some limits.

    With up to three options, for each number of layers that take the first, as many as must take the second rather than
    the third, exactly. More options go by their frontier.

    >>> full, selective, none = (5.0, 1.0), (4.0, 3.0), (3.0, 6.0)
    >>> found = fastest_within(np.array([full, selective, none]), 4, np.array([24.0, 21.0, 3.0]))
    >>> found.seconds.tolist(), found.counts.tolist()
    ([12.0, 13.0, inf], [[0, 0, 4], [0, 1, 3], [0, 0, 0]])
    """
    order = np.argsort(-costs[:, 1], kind="stable")
    most = costs[order]
    if len(most) > 3:
        return _by_frontier(costs, layers, rooms)
    while len(most) < 3:
        most, order = np.concatenate((most, most[-1:])), np.append(order, order[-1])
    smallest = np.arange(layers + 1)
    rest = layers - smallest
    need = rest * most[0, 1] + smallest * most[2, 1] - rooms[:, None]
    saved = most[0, 1] - most[1, 1]
    middle = np.ceil(np.maximum(need, 0.0) / saved - 1e-9) if saved > 0 else np.where(need > 0, layers + 1.0, 0.0)
    seconds = (rest - middle) * most[0, 0] + middle * most[1, 0] + smallest * most[2, 0]
    seconds = np.where(middle <= rest, seconds, np.inf)
    best = np.argmin(seconds, axis=1)
    rows = np.arange(len(rooms))
    found, counts = seconds[rows, best], np.zeros((len(rooms), len(costs)), dtype=np.int64)
    fits = np.isfinite(found)
    taken = np.where(fits, middle[rows, best], 0.0).astype(np.int64)
    np.add.at(counts, (rows, order[0]), np.where(fits, rest[best] - taken, 0))
    np.add.at(counts, (rows, order[1]), taken)
    np.add.at(counts, (rows, order[2]), np.where(fits, smallest[best], 0))
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
