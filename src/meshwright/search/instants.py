"""When a group of a pipeline may be fullest: the backwards of its order, with what its stages hold then."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshwright.cost.memory import in_flight
from meshwright.plan.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Integers, Order, orders
from meshwright.plan.words import Schedule
from meshwright.search.frontier import Floats, undominated

_ROUNDS = 4
"""Rounds of micro-batches after which an interleaved order repeats itself."""


class Instants(NamedTuple):
    """The backwards of a group's order at which it may be fullest."""

    stage: Integers
    """[instants]: whose it is, among the group's stages."""
    first: Integers
    last: Integers
    """[instants]: whether it makes the gradients of inputs, and those of weights."""
    held: Floats
    """[instants, stages]: micro-batches in flight."""
    late: Floats
    """[instants, stages]: of those, whose gradients of weights are still to come after that of the input."""
    begun: Floats
    """[instants, stages]: whether there are gradients."""
    overlapping: bool
    """Whether a stage holds several micro-batches."""


@lru_cache(maxsize=512)
def instants_of(schedule: Schedule, places: tuple[int, ...], micro_batches: int, group: int) -> Instants:
    """Of one group; `places` is that of each stage.

    >>> found = instants_of("interleaved", (0, 1, 0, 1), 8, 0)
    >>> found.stage.tolist(), found.held.tolist()
    ([0, 0, 1, 1], [[4.0, 1.0], [3.0, 2.0], [4.0, 1.0], [3.0, 2.0]])
    """
    repeating = _ROUNDS * (max(places) + 1)
    if schedule == "interleaved" and micro_batches % (max(places) + 1) == 0:
        micro_batches = min(micro_batches, repeating)
    own = np.flatnonzero(np.array(places) == group)
    return _fullest(orders(schedule, places, micro_batches)[group], own)


def _fullest(order: Order, stages: Integers) -> Instants:
    whose = order.stage[:, None] == stages
    first, last = order.does(BACKWARD, INPUT), order.does(BACKWARD, WEIGHT)
    held = np.stack([in_flight(order, own * 1.0) for own in whose.T], axis=1)
    put, done = whose * (order.kind == INPUT)[:, None], whose * (order.kind == WEIGHT)[:, None]
    late = np.cumsum(put, axis=0) - put - (np.cumsum(done, axis=0) - done)
    made = whose * last[:, None]
    begun = (np.cumsum(made, axis=0) - made) > 0
    found, table = list[int](), np.concatenate((held, late, begun), axis=1)
    runs = np.column_stack((np.searchsorted(stages, order.stage), first, last))
    for run in np.unique(runs[order.kind != FORWARD], axis=0):
        rows = np.flatnonzero((runs == run).all(axis=1) & (order.kind != FORWARD))
        found += rows[undominated(-table[rows])].tolist()
    of_stage, makes_first, makes_last = runs[found].T
    overlapping = bool(held[found].sum(axis=1).max() > len(stages))
    return Instants(of_stage, makes_first, makes_last, held[found], late[found] * 1.0, begun[found] * 1.0, overlapping)
