"""What waits for what in a pipeline: the graph of the actions and messages of a schedule, whatever they take.

It depends on the orders and on which stage reads which alone, and is sorted once into ranks of nodes that do not wait
for each other.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import PlanError
from meshwright.plan.orders import BACKWARD, FORWARD, INPUT, KINDS, Integers, Order


class Graph(NamedTuple):
    """Actions and messages with what each waits for, sorted so that every node stands after those."""

    orders: tuple[Order, ...]
    stages: tuple[tuple[int, ...], ...]
    """Of each group."""
    actions: tuple[Integers, ...]
    """The node of each action, group by group."""
    messages: Integers
    """The node of each message."""
    message_facts: Integers
    """Of each message: source stage, target stage, micro-batch, 1 for a forward, and the number of its link."""
    before: Integers
    """[waits, nodes]: the nodes that a node waits for; the last node, which ends at 0, fills up."""
    ranks: Integers
    """Where each run of nodes begins that do not wait for each other, and the end."""


@lru_cache(maxsize=64)
def graph_of(orders: tuple[Order, ...], links: tuple[tuple[int, int], ...]) -> Graph:
    """The graph of a schedule, whatever its times. Raises PlanError where groups wait for each other in a circle."""
    return _Builder(orders, links).graph()


class _Builder:
    """Numbers actions group by group, then messages link by link, and says what each waits for."""

    def __init__(self, orders: tuple[Order, ...], links: tuple[tuple[int, int], ...]) -> None:
        self.orders = orders
        self.first = np.cumsum([0, *(len(order) for order in orders)])
        """The number of each group's first action."""
        self.count = int(self.first[-1])
        """Of all actions."""
        self.stage, kind, number = (
            np.concatenate([getattr(order, name) for order in orders]) for name in ("stage", "kind", "micro_batch")
        )
        stages, numbers = int(self.stage.max(initial=0)) + 1, int(number.max(initial=0)) + 1
        made = np.full((len(KINDS), stages, numbers), -1)
        made[kind, self.stage, number] = np.arange(self.count)
        self.at = np.stack([np.maximum(made[BACKWARD], made[INPUT]), made[FORWARD]])
        """[way, stages, micro-batches]: where a forward (1) is, and where the gradient of its input is made (0)."""
        self.group_of = np.zeros(stages, dtype=np.int64)
        self.group_of[self.stage] = np.repeat(np.arange(len(orders)), np.diff(self.first))
        made_by, wanted_by, self.facts, self.apart = self._passed(links)
        self.queue = self._queues()
        self.line = np.lexsort((made_by[self.apart], self.queue))
        """The messages, queue by queue in the order in which they are made."""
        self.made, self.wanted = self._together(made_by, wanted_by)
        self.turn = np.empty_like(self.queue)
        self.turn[self.line] = _places((self.queue * self.count + self.made[self.apart])[self.line])
        """The place of each message among those of its queue that are made at once."""

    def _passed(self, links: tuple[tuple[int, int], ...]) -> tuple[Integers, Integers, Integers, NDArray[np.bool_]]:
        """What actions pass on to others: where it is made and wanted, `Graph.message_facts`, and whether it is a
        message, from one group to another.
        """
        if not links:
            none = np.empty(0, dtype=np.int64)
            return none, none, np.empty((0, 5), dtype=np.int64), none.astype(bool)
        source, target = np.array(links).T
        # [links, ways, micro-batches]: forward first
        made = np.stack([self.at[1, source], self.at[0, target]], axis=1)
        wanted = np.stack([self.at[1, target], self.at[0, source]], axis=1)
        place, back, number = np.nonzero((made >= 0) & (wanted >= 0))
        facts = np.stack([source[place], target[place], number, 1 - back, place], axis=1)
        apart = self.group_of[source] != self.group_of[target]
        return made[place, back, number], wanted[place, back, number], facts, apart[place]

    def _together(self, made: Integers, wanted: Integers) -> tuple[Integers, Integers]:
        """Both actions of a pair start when both can, and what they make is there when both are through: what waits for
        the first waits for the second, what the second waits for the first does.
        """
        pairs = np.concatenate([order.joined + first for order, first in zip(self.orders, self.first, strict=False)])
        first, last = np.arange(self.count), np.arange(self.count)
        first[pairs + 1], last[pairs] = pairs, pairs + 1
        return last[made], first[wanted]

    def graph(self) -> Graph:
        """Sorted into ranks. A message's follows from that of the action which makes it: what is before it in its queue
        was made by earlier actions of the same group, or has an earlier turn.
        """
        own = self._levels() * (2 + int(self.turn.max(initial=0)))
        rank = np.concatenate([own, own[self.made[self.apart]] + 1 + self.turn])
        size, last = len(rank), int(rank.max(initial=-1))
        by_rank = np.argsort(rank.astype(np.min_scalar_type(last)), kind="stable")  # small integers sort faster
        place = np.empty(size + 1, dtype=np.int64)
        place[by_rank], place[size] = np.arange(size), size
        bounds = np.flatnonzero(np.diff(rank[by_rank], prepend=-1, append=last + 1))
        stages = tuple(tuple(np.unique(order.stage).tolist()) for order in self.orders)
        actions = tuple(place[begin:end] for begin, end in pairwise(self.first))
        before = place.take(self._before().take(by_rank, axis=1))
        return Graph(self.orders, stages, actions, place[self.count : size], self.facts[self.apart], before, bounds)

    def _levels(self) -> Integers:
        """For each action a number that is above those of all which it waits for. Raises PlanError where groups wait
        for each other in a circle.
        """
        groups = np.arange(len(self.orders))
        shift = np.repeat(groups, np.diff(self.first))  # after each group's last action comes one that never does
        never = self.count + len(groups)
        before, free = _columns(self.made + shift[self.made], self.wanted + shift[self.wanted], never), never + 1
        before[before == never] = free
        before[0, self.first[1:] + groups] = never
        levels = np.full(never + 2, _NEVER)
        levels[free] = -1
        at, level, now = self.first[:-1] + groups, 0, groups
        one, *others = before
        while len(now):
            ready = levels.take(one.take(at)) < level
            for row in others:
                ready &= levels.take(row.take(at)) < level
            now = at.compress(ready)
            levels.put(now, level)
            at += ready
            level += 1
        found: Integers = levels[np.arange(self.count) + shift]
        if np.any(found == _NEVER):
            stuck = sorted({int(stage) for stage in self.stage[found == _NEVER]})
            names = ", ".join(map(str, stuck[:8]))
            raise PlanError(
                f"stages {names} wait for each other in a circle: a stage must read earlier ones only, and no group may"
                " stand before what waits for its later actions"
            )
        return found

    def _before(self) -> Integers:
        """[waits, nodes]: what each node waits for. An action for the one before it in its group and for what is passed
        to it, a message for the action that makes it and for the message before it in its queue.
        """
        messages, apart = int(self.apart.sum()), self.apart
        size = self.count + messages
        nodes = np.arange(self.count, size)
        passed = self.made.copy()
        passed[apart] = nodes
        before = np.concatenate([np.arange(-1, size - 1)[None], _columns(passed, self.wanted, size)])
        before[0, self.first[:-1][np.diff(self.first) > 0]] = size
        before[0, self.count :] = self.made[apart]
        following, leading = self.line[1:], self.line[:-1]
        behind = self.queue[following] == self.queue[leading]
        before[1, self.count + following[behind]] = self.count + leading[behind]
        return before

    def _queues(self) -> Integers:
        """The number of each message's queue: those from one group to another, which go in the order in which they are
        made.
        """
        facts = self.facts[self.apart]
        source, target, forward = self.group_of[facts[:, 0]], self.group_of[facts[:, 1]], facts[:, 3] == 1
        there = source * len(self.orders) + target
        queues: Integers = np.where(forward, there, target * len(self.orders) + source)
        return queues


_NEVER = np.iinfo(np.int64).max


def _columns(before: Integers, after: Integers, size: int) -> Integers:
    """Pairs → for each node those that it waits for, filled up with `size`.

    >>> _columns(np.array([0, 1, 0]), np.array([2, 2, 1]), 3)
    array([[3, 0, 0],
           [3, 3, 1]])
    """
    column = _places(after)
    columns = np.full((1 + int(column.max(initial=0)), size), size)
    columns[column, after] = before
    return columns


def _places(values: Integers) -> Integers:
    """The place of each number among its equals.

    >>> _places(np.array([5, 7, 5, 5]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    places = np.empty_like(values)
    places[order] = np.arange(len(values)) - np.searchsorted(ranked, ranked)
    return places
