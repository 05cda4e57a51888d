"""What waits for what in a pipeline: the graph of the actions and messages of a schedule, whatever they take.

It depends on the orders and on which stage reads which alone, and is sorted once into ranks of nodes that do not wait
for each other.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.cost.orders import BACKWARD, FORWARD, INPUT, Integers, Order
from meshwright.errors import PlanError


class Graph(NamedTuple):
    """Actions and messages with what each waits for, sorted so that every node stands after those."""

    orders: tuple[Order, ...]
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
        self.stage, self.kind, self.number = (
            np.concatenate([getattr(order, name) for order in orders]) for name in ("stage", "kind", "micro_batch")
        )
        stages, count = int(self.stage.max(initial=0)) + 1, int(self.number.max(initial=0)) + 1
        self.at = np.full((2, stages, count), -1)
        """Where the forward of a stage and micro-batch is, and where the gradient of its input is made."""
        everything = np.arange(len(self.stage))
        for row, kinds in enumerate(((FORWARD,), (BACKWARD, INPUT))):
            these = everything[np.isin(self.kind, kinds)]
            self.at[row, self.stage[these], self.number[these]] = these
        self.group_of = np.zeros(stages, dtype=np.int64)
        for group, order in enumerate(orders):
            self.group_of[order.stage] = group
        self.waits: list[tuple[Integers, Integers]] = []
        """Pairs of nodes: the second waits for the first."""
        self.facts: list[Integers] = []
        self.size = len(everything)
        self._sequences()
        self._links(links)

    def _sequences(self) -> None:
        for begin, end in pairwise(self.first):
            self.waits.append((np.arange(begin, end - 1), np.arange(begin + 1, end)))

    def _links(self, links: tuple[tuple[int, int], ...]) -> None:
        """Messages of links between the same two groups queue up in the order in which they are made."""
        queues: dict[tuple[int, int], list[Integers]] = {}
        for place, (source, target) in enumerate(links):
            for forward in (1, 0):
                made = self.at[0, source] if forward else self.at[1, target]
                wanted = self.at[0, target] if forward else self.at[1, source]
                both = np.flatnonzero((made >= 0) & (wanted >= 0))
                made, wanted = made[both], wanted[both]
                ends = (self.group_of[source], self.group_of[target])
                if ends[0] == ends[1]:
                    self.waits.append((made, wanted))
                    continue
                nodes = np.arange(self.size, self.size + len(both))
                self.size += len(both)
                self.waits += [(made, nodes), (nodes, wanted)]
                facts = np.empty((len(both), 5), dtype=np.int64)
                facts[:, 0], facts[:, 1], facts[:, 2], facts[:, 3], facts[:, 4] = source, target, both, forward, place
                self.facts.append(facts)
                queues.setdefault(ends if forward else ends[::-1], []).append(np.stack([made, nodes], axis=1))
        for pieces in queues.values():
            queue = np.concatenate(pieces)
            queue = queue[np.argsort(queue[:, 0], kind="stable"), 1]
            self.waits.append((queue[:-1], queue[1:]))

    def graph(self) -> Graph:
        """Sorted into ranks."""
        before, after = (np.concatenate(side) for side in zip(*self.waits, strict=True))
        rank = _ranks(self.size, before, after)
        if np.any(rank < 0):
            stuck = sorted({int(stage) for stage in self.stage[rank[: len(self.stage)] < 0]})
            names = ", ".join(map(str, stuck[:8]))
            raise PlanError(f"stages {names} wait for each other in a circle: a stage must read earlier ones only")
        sorted_nodes = np.argsort(rank, kind="stable")
        place = np.empty_like(sorted_nodes)
        place[sorted_nodes] = np.arange(self.size)
        bounds = np.searchsorted(rank[sorted_nodes], np.arange(rank.max(initial=-1) + 2))
        actions = tuple(place[begin:end] for begin, end in pairwise(self.first))
        facts = np.concatenate(self.facts) if self.facts else np.empty((0, 5), dtype=np.int64)
        columns = _columns(place[before], place[after], self.size)
        return Graph(self.orders, actions, place[len(self.stage) :], facts, columns, bounds)


def _ranks(size: int, before: Integers, after: Integers) -> Integers:
    """The length of the longest way to each node; -1 for those in a circle or behind one."""
    waits = np.bincount(after, minlength=size + 1)
    followers = _columns(after, before, size)
    rank, level = np.full(size, -1), 0
    ready, mark, places = np.flatnonzero(waits[:size] == 0), np.empty(size + 1, dtype=np.int64), np.arange(len(after))
    while len(ready):
        rank[ready] = level
        level += 1
        reached = followers[:, ready].ravel()
        np.subtract.at(waits, reached, 1)
        waits[size] = 1  # what fills up the followers is never ready
        reached = reached[waits[reached] == 0]
        mark[reached] = places[: len(reached)]
        ready = reached[mark[reached] == places[: len(reached)]]  # each once
    return rank


def _columns(before: Integers, after: Integers, size: int) -> Integers:
    """Pairs → for each node those that it waits for, filled up with `size`."""
    by_target = np.argsort(after, kind="stable")
    before, after = before[by_target], after[by_target]
    starts = np.searchsorted(after, np.arange(size))
    column = np.arange(len(after)) - starts[after]
    columns = np.full((max(1, int(column.max(initial=0)) + 1), size), size)
    columns[column, after] = before
    return columns
