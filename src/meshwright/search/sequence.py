"""The Pareto frontier of a sequence of unlike layers, with what it costs to go from one option to another.

Labels in the way of the shortest path under several criteria (Hansen 1980; Martins 1984): after each layer, for each
option that it can have taken, the costs so far that no others beat. A label that is beaten at the same option is
beaten whatever follows, so the frontier is exact.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from meshwright.search.frontier import Floats, Integers, undominated

Transition: TypeAlias = Callable[[int, int], Floats | None]
"""Kinds of two neighbours → [options of the first, options of the second, columns], or none where it costs nothing."""


class Path(NamedTuple):
    """Ways through a sequence: [ways, columns], and the option of each layer, [ways, layers]."""

    costs: Floats
    options: Integers


class _Labels(NamedTuple):
    """Ways up to a layer: their costs, the option that each ends with, and the way that it goes on from."""

    costs: Floats
    option: Integers
    before: Integers


def sequence_frontier(
    kinds: Sequence[int], costs: Sequence[Floats], transition: Transition, most: Floats | None = None
) -> Path:
    """The frontier of layers one after the other. `costs[kind]` has a row for each option of a kind of layer.

    Two layers of one kind whose options cost 1 and 2; to change costs 5, so that the second option is only worth its
    smaller memory for both:

    >>> table = np.array([[1.0, 9.0], [2.0, 1.0]])
    >>> change = np.array([[[0.0, 0.0], [5.0, 0.0]], [[5.0, 0.0], [0.0, 0.0]]])
    >>> found = sequence_frontier([0, 0], [table], lambda one, other: change)
    >>> found.costs.tolist(), found.options.tolist()
    ([[2.0, 18.0], [4.0, 2.0]], [[0, 0], [1, 1]])
    """
    if not kinds:
        columns = costs[0].shape[1] if costs else 0
        return Path(np.zeros((1, columns)), np.zeros((1, 0), dtype=np.int64))
    limits = _limits(kinds, costs, most)
    first = costs[kinds[0]]
    start = np.zeros(len(first), dtype=np.int64)
    steps = [_pruned(_Labels(first, np.arange(len(first)), start), limits[0])]
    for place in range(1, len(kinds)):
        step = _step(steps[-1], costs[kinds[place]], transition(kinds[place - 1], kinds[place]))
        steps.append(_pruned(step, limits[place]))
    return _traced(steps)


def _limits(kinds: Sequence[int], costs: Sequence[Floats], most: Floats | None) -> list[Floats]:
    """What labels may cost after each layer, so that the rest still fits at its least."""
    columns = costs[kinds[0]].shape[1]
    left = np.full(columns, np.inf) if most is None else most.astype(float)
    found = [left]
    for kind in reversed(kinds[1:]):
        left = left - costs[kind].min(axis=0)
        found.append(left)
    return found[::-1]


def _step(labels: _Labels, costs: Floats, change: Floats | None) -> _Labels:
    count, options = len(labels.option), len(costs)
    sums = labels.costs[:, None] + costs[None]
    if change is not None:
        sums = sums + change[labels.option]
    return _Labels(
        sums.reshape(-1, costs.shape[1]), np.tile(np.arange(options), count), np.repeat(np.arange(count), options)
    )


def _pruned(labels: _Labels, most: Floats) -> _Labels:
    inside = np.flatnonzero((labels.costs <= most + 1e-12 * np.abs(np.where(np.isfinite(most), most, 0.0))).all(axis=1))
    kept = [inside[:0]]
    for option in np.unique(labels.option[inside]):
        same = inside[labels.option[inside] == option]
        kept.append(same[undominated(labels.costs[same])])
    rows = np.concatenate(kept)
    return _Labels(labels.costs[rows], labels.option[rows], labels.before[rows])


def _traced(steps: Sequence[_Labels]) -> Path:
    rows = undominated(steps[-1].costs) if len(steps[-1].costs) else np.empty(0, dtype=np.int64)
    costs, options = steps[-1].costs[rows], np.zeros((len(rows), len(steps)), dtype=np.int64)
    for place in range(len(steps) - 1, -1, -1):
        options[:, place] = steps[place].option[rows]
        rows = steps[place].before[rows]
    return Path(costs, options)
