"""The Pareto frontier of a run of equal layers, by how many of them take each option.

An option of a layer costs several things at once: seconds of a micro-batch, seconds at the end of a step, bytes. Of the
ways to deal options out to n layers, those count which no other way beats in everything. Sums of equal layers are
sums of halves, and what is beaten as a half is beaten as a whole, so n layers take about log2(n) sums (the principle
of optimality under dominance: Yu 1974, "Cone convexity, cone extreme points, and nondominated solutions").
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

_BLOCK = 128
"""Rows that are compared with all of a front at once."""


class Frontier(NamedTuple):
    """Ways to deal options out to layers of which none beats another; [ways, columns] and [ways, options]."""

    costs: Floats
    """What each way costs, column by column."""
    counts: Integers
    """How many layers take each option."""

    def __len__(self) -> int:
        return len(self.costs)


class Option(NamedTuple):
    """What one layer of a kind costs under one row of a plan, on one rank."""

    forward: float
    backward: float
    """Seconds of a micro-batch."""
    last: float = 0.0
    """Seconds that it adds to the end of a step: what is left of reducing gradients, the optimizer, gathering."""
    states: float = 0.0
    """Bytes that stay."""
    activations: float = 0.0
    """Bytes for each micro-batch in flight."""
    fixed: float = 0.0
    """Bytes that are there once, however many layers take it: what one layer needs on its way."""


def option_costs(options: Sequence[Option], in_flight: int) -> Floats:
    """Three columns: seconds of a micro-batch, seconds at the end, and bytes with so many micro-batches in flight.

    >>> option_costs([Option(1.0, 2.0, 0.5, states=10, activations=3)], in_flight=4).tolist()
    [[3.0, 0.5, 22.0]]
    """
    table = np.array(options, dtype=float).reshape(-1, len(Option._fields))
    return np.column_stack((table[:, 0] + table[:, 1], table[:, 2], table[:, 3] + in_flight * table[:, 4]))


def undominated(costs: Floats) -> Integers:
    """The rows that no other row beats: none is at most as much in all columns and less in one. Of equals the first.

    >>> undominated(np.array([[1.0, 5.0], [2.0, 3.0], [2.0, 4.0], [3.0, 3.0], [1.0, 5.0]])).tolist()
    [0, 1]
    """
    if not len(costs):
        return np.empty(0, dtype=np.int64)
    order = np.lexsort(costs.T[::-1])
    rows = costs[order]
    if rows.shape[1] == 1:
        return order[:1]
    if rows.shape[1] == 2:
        second = rows[:, 1]
        before = np.concatenate(([np.inf], np.minimum.accumulate(second)[:-1]))
        return order[second < before]
    return order[_kept(rows)]


def _kept(rows: Floats) -> Integers:
    """The same of rows in order: a row can be beaten by earlier ones only."""
    front = np.empty((0, rows.shape[1]))
    places: list[Integers] = []
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        alive = np.flatnonzero(~_beaten(block, front))
        block = block[alive]
        earlier = np.tri(len(block), k=-1, dtype=bool)
        alone = ~(_at_most(block, block) & earlier).any(axis=1)
        places.append(start + alive[alone])
        front = np.concatenate((front, block[alone]))
    return np.concatenate(places) if places else np.empty(0, dtype=np.int64)


def _beaten(block: Floats, front: Floats) -> Bools:
    return np.asarray(_at_most(block, front).any(axis=1), dtype=np.bool_)


def _at_most(block: Floats, front: Floats) -> Bools:
    """[rows of the block, rows of the front]: whether the second is at most the first in every column."""
    found = front[:, 0] <= block[:, :1]
    for column in range(1, block.shape[1]):
        found &= front[:, column] <= block[:, column : column + 1]
    return found


def repeated(costs: Floats, layers: int, most: Floats | None = None, *, compared: int | None = None) -> Frontier:
    """The frontier of so many equal layers, each with one of these options, exactly; `most` is what a way may cost, by
    column (infinity where there is no limit). Without a way within it the frontier is empty. Where the last columns are
    sums of multiples of the first, they say nothing of which way is beaten: the first `compared` are enough.

    Two layers that are fast and large or slow and small; both fast do not fit into 9 bytes:

    >>> found = repeated(np.array([[1.0, 5.0], [2.0, 3.0]]), 2, np.array([np.inf, 9.0]))
    >>> found.costs.tolist(), found.counts.tolist()
    ([[3.0, 8.0], [4.0, 6.0]], [[1, 1], [0, 2]])
    """
    limit = np.full(costs.shape[1], np.inf) if most is None else most
    one = _start(costs, compared)
    least = costs.min(axis=0, initial=np.inf) if len(costs) else np.zeros(costs.shape[1])
    total, size = Frontier(np.zeros((1, costs.shape[1])), np.zeros((1, len(costs)), dtype=np.int64)), 0
    if layers == 0:
        return _within(total, limit)
    power, power_size = one, 1
    rest = layers
    while rest:
        if rest & 1:
            size += power_size
            total = plus(total, power, limit - (layers - size) * least, compared=compared)
        rest >>= 1
        if rest:
            power_size *= 2
            power = plus(power, power, limit - (layers - power_size) * least, compared=compared)
    return total


def _start(costs: Floats, compared: int | None) -> Frontier:
    """One layer: each undominated option alone."""
    kept = undominated(costs[:, :compared])
    return Frontier(costs[kept], np.eye(len(costs), dtype=np.int64)[kept])


def plus(one: Frontier, other: Frontier, most: Floats | None = None, *, compared: int | None = None) -> Frontier:
    """Each way of the one with each of the other, over the same options; the undominated ones within `most`."""
    costs, pairs = _sums(one.costs, other.costs, most, compared)
    return Frontier(costs, one.counts[pairs[:, 0]] + other.counts[pairs[:, 1]])


def beside(one: Frontier, other: Frontier, most: Floats | None = None) -> Frontier:
    """The same of layers of different kinds: the counts of the one's options stand before those of the other's."""
    if most is None and min(len(one), len(other)) == 1:  # to add the same to all ways lets none beat another
        counts = [
            np.broadcast_to(each.counts, (max(len(one), len(other)), each.counts.shape[1])) for each in (one, other)
        ]
        return Frontier(one.costs + other.costs, np.concatenate(counts, axis=1))
    costs, pairs = _sums(one.costs, other.costs, most)
    return Frontier(costs, np.concatenate((one.counts[pairs[:, 0]], other.counts[pairs[:, 1]]), axis=1))


def _sums(one: Floats, other: Floats, most: Floats | None, compared: int | None = None) -> tuple[Floats, Integers]:
    sums = (one[:, None] + other[None]).reshape(-1, one.shape[1])
    within = np.arange(len(sums)) if most is None else np.flatnonzero((sums <= _above(most)).all(axis=1))
    kept = within[undominated(sums[within, :compared])]
    return sums[kept], np.column_stack(np.divmod(kept, max(1, len(other))))


def _within(found: Frontier, most: Floats) -> Frontier:
    inside = (found.costs <= _above(most)).all(axis=1)
    return Frontier(found.costs[inside], found.counts[inside])


def _above(most: Floats) -> Floats:
    """A limit with room for what rounding adds to a sum."""
    return np.where(np.abs(most) < 1e300, most + 1e-12 * np.abs(most), most)


def run_frontier(options: Sequence[Option], layers: int, in_flight: int, capacity: float) -> Frontier:
    """The frontier of a run of equal layers in a memory of so many bytes: seconds of a micro-batch, seconds at the end,
    bytes. What is there once (`Option.fixed`) counts as the largest of the options that are taken.

    >>> keep, again = Option(1, 2, activations=4), Option(1, 3, activations=1, fixed=4)
    >>> found = run_frontier([keep, again], layers=4, in_flight=2, capacity=26)
    >>> found.costs.tolist(), found.counts.tolist()
    ([[14.0, 0.0, 24.0], [15.0, 0.0, 18.0], [16.0, 0.0, 12.0]], [[2, 2], [1, 3], [0, 4]])
    """
    costs, fixed = option_costs(options, in_flight), np.array([option.fixed for option in options])
    found: list[Frontier] = []
    for size in np.unique(fixed):
        allowed = np.flatnonzero(fixed <= size)
        part = repeated(costs[allowed], layers, np.array([np.inf, np.inf, capacity - size]))
        counts = np.zeros((len(part), len(options)), dtype=np.int64)
        counts[:, allowed] = part.counts
        taken = (fixed * (counts > 0)).max(axis=1, initial=0.0)
        found.append(Frontier(part.costs + np.column_stack((np.zeros((len(part), 2)), taken)), counts))
    return merged(found)


def merged(frontiers: Sequence[Frontier]) -> Frontier:
    """The undominated ways of all."""
    costs = np.concatenate([each.costs for each in frontiers])
    kept = undominated(costs)
    return Frontier(costs[kept], np.concatenate([each.counts for each in frontiers])[kept])
