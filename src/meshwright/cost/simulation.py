"""When everything happens: an event simulation of a pipeline.

Each group of devices runs an ordered list of actions (`orders`). An action starts when its group is free and what it
needs has arrived: a forward needs the forwards of the stages that its own reads, a backward its own forward and the
backwards of the stages that read it. What goes from one group to another travels on the link between the two, one
message at a time in the order in which they are made, while both groups go on.

With orders fixed each starts when a few others have ended (`order_graph`), so a simulation is three array operations
for each rank of the graph.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.order_graph import Graph, graph_of
from meshwright.cost.overlap import beside
from meshwright.plan.orders import KINDS, Integers, Order

SpanKind = Literal["forward", "backward", "input", "weight", "reduce", "tied", "norm", "optimizer", "update"]
Floats: TypeAlias = NDArray[np.float64]


class StageTime(NamedTuple):
    """Seconds of one stage: of a micro-batch each way, and at the end of a step."""

    forward: float
    backward: float
    reduce: float = 0.0
    """Gradients, after the last backward."""
    optimizer: float = 0.0
    update: float = 0.0
    """Gathering of the parameters that the optimizer has changed."""
    weight: float = 0.0
    """Of backward, the gradients of the weights, where a schedule takes them apart."""
    forward_sent: float = 0.0
    """Of forward, exchanges that the backward of another micro-batch can hide where both run together."""
    backward_sent: float = 0.0
    """The same of backward, behind a forward."""


class Link(NamedTuple):
    """A stage reads another: seconds that activations and their gradients travel."""

    source: int
    target: int
    forward: float = 0.0
    backward: float = 0.0


class Tied(NamedTuple):
    """A gradient that several groups sum once a step."""

    stages: tuple[int, ...]
    """One of each group that holds the parameter."""
    seconds: float


class Span(NamedTuple):
    """One bar of a timeline. `micro_batch` is none for what happens once a step, `stage` then the group's first."""

    group: int
    stage: int
    micro_batch: int | None
    kind: SpanKind
    start: float
    end: float


class Message(NamedTuple):
    """One message between two groups: from when it is under way to its arrival."""

    source: int
    target: int
    """Stages."""
    micro_batch: int
    forward: bool
    """False for a gradient, which goes from `target` to `source`."""
    start: float
    end: float


class SharedPool(NamedTuple):
    """Devices that share computing: 4 CPU ranks on 2 cores."""

    units: float
    """Devices' worth of computing."""
    devices: Mapping[int, int]
    """Group → its devices in the pool."""

    def pace(self, busy: Collection[int]) -> float:
        """How much faster each goes with these groups at work than with all of them.

        >>> SharedPool(2, {0: 2, 1: 2}).pace({0})
        2.0
        """
        at_work = sum(count for group, count in self.devices.items() if group in busy)
        return max(1.0, sum(self.devices.values()) / self.units) / max(1.0, at_work / self.units)


class Timeline:
    """A simulated step."""

    def __init__(
        self, graph: Graph, starts: Floats, ends: Floats, finish: Sequence[Span], hidden: Sequence[float]
    ) -> None:
        self.hidden = tuple(hidden)
        """Seconds that pairs save each group."""
        self._graph, self._starts, self._ends, self.finish = graph, starts, ends, tuple(finish)
        last = [span.end for span in finish]
        self.seconds = float(max([*last, ends.max(initial=0.0)]))
        self.busy = _busy(graph, ends - starts, finish)
        """Seconds that each group works."""

    @property
    def bubble(self) -> float:
        """The share of the step that a group waits, in the mean over groups."""
        return max(0.0, 1 - sum(self.busy) / (len(self.busy) * self.seconds)) if self.seconds else 0.0

    @cached_property
    def longest(self) -> tuple[int, NDArray[np.int64]]:
        """The group that ends last, and what it waited for: of the longest chain of actions and messages up to its last
        action, how many actions each stage has of each kind, [stages, KINDS].
        """
        graph, groups = self._graph, range(len(self._graph.actions))
        over = [self._ends[nodes[-1]] if len(nodes) else 0.0 for nodes in graph.actions]
        for span in self.finish:
            over[span.group] = max(over[span.group], span.end)
        last = max(groups, key=lambda group: over[group])
        of = np.full((2, len(self._ends)), -1)
        for order, nodes in zip(graph.orders, graph.actions, strict=True):
            of[:, nodes] = order.stage, order.kind
        chain = of[:, self._chain(int(graph.actions[last][-1]))]
        found = np.zeros((1 + int(of[0].max()), len(KINDS)), dtype=np.int64)
        np.add.at(found, tuple(chain[:, chain[0] >= 0]), 1)
        return last, found

    def _chain(self, node: int) -> list[int]:
        """A node, and back from it always what it waited for last."""
        before = self._graph.before
        ends = np.append(self._ends, 0.0)
        waited = before[ends[before].argmax(axis=0), np.arange(before.shape[1])].tolist()
        found = list[int]()
        while node < len(waited):
            found.append(node)
            node = waited[node]
        return found

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Group by group, in order of time."""
        graph, found = self._graph, list[Span]()
        for group, nodes in enumerate(graph.actions):
            order = graph.orders[group]
            rows = zip(order, self._starts[nodes].tolist(), self._ends[nodes].tolist(), strict=True)
            found += [Span(group, stage, number, kind, start, end) for (stage, kind, number), start, end in rows]
            found += [span for span in self.finish if span.group == group]
        return tuple(found)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """What travelled between groups."""
        graph = self._graph
        starts, ends = self._starts[graph.messages].tolist(), self._ends[graph.messages].tolist()
        rows = zip(graph.message_facts.tolist(), starts, ends, strict=True)
        return tuple(Message(a, b, number, way == 1, start, end) for (a, b, number, way, _), start, end in rows)


def simulate(
    orders: tuple[Order, ...],
    times: Sequence[StageTime],
    links: Sequence[Link],
    *,
    tied: Sequence[Tied] = (),
    norm: float | None = None,
    pools: Sequence[SharedPool] = (),
    contention: float = 0.0,
) -> Timeline:
    """Run each group's actions, then what ends a step: gradients, optimizer, parameters.

    A gradient of `tied` is summed when the last of its groups has reduced its own. `norm` is the time of the reduction
    of the gradient norm, for which all groups wait until the last has its gradients; none where gradients are not
    clipped, and every group goes on by itself. Where groups share the computing of `pools`, times are those with all of
    them at work. Raises PlanError where groups wait for each other in a circle.

    The actions of a pair (`Order.joined`) start when both can, and what they make is sent when both are through. Their
    computing adds up, and what each sends runs beside the other's computing, which is slower by `contention` meanwhile:
    the step is that of two streams for each micro-batch (DeepSeek-V3, arXiv 2412.19437, section 3.2.1, figure 4).

    Of P equal stages and M micro-batches, 1f1b takes (M + P - 1) (forward + backward), of which P - 1 in M + P - 1 are
    waited (Narayanan 2021, section 2.2.1). One micro-batch alone also waits for its messages.

    >>> from meshwright.plan.orders import orders
    >>> step = simulate(orders("1f1b", (0, 1), 4), [StageTime(1, 2), StageTime(1, 2)], [Link(0, 1)])
    >>> step.seconds, round(step.bubble, 3)
    (15.0, 0.2)
    >>> simulate(orders("1f1b", (0, 1), 1), [StageTime(1, 2), StageTime(1, 2)], [Link(0, 1, 0.5, 0.5)]).seconds
    7.0
    """
    graph = graph_of(orders, tuple((link.source, link.target) for link in links))
    durations, hidden = _durations(graph, times, links, contention)
    starts, ends = _shared(graph, durations, pools) if pools else _alone(graph, durations)
    return Timeline(graph, starts, ends, _finish(graph, ends, times, tied, norm), hidden)


def _alone(graph: Graph, durations: Floats) -> tuple[Floats, Floats]:
    """Starts and ends of all nodes, where each takes its time whatever the others do."""
    ends = np.zeros(len(durations) + 1)
    first, *others = graph.before
    bounds = graph.ranks.tolist()
    for begin, end in pairwise(bounds):
        ready = ends.take(first[begin:end])
        for column in others:
            np.maximum(ready, ends.take(column[begin:end]), out=ready)
        np.add(ready, durations[begin:end], out=ends[begin:end])
    ends = ends[:-1]
    return ends - durations, ends


def _shared(graph: Graph, durations: Floats, pools: Sequence[SharedPool]) -> tuple[Floats, Floats]:
    """The same, where those at work share pools: from one end of a node to the next, everyone goes at its own pace."""
    group_of = {int(node): group for group, nodes in enumerate(graph.actions) for node in nodes}
    waits = (graph.before < graph.before.shape[1]).sum(axis=0)
    followers: list[list[int]] = [[] for _ in range(len(durations))]
    for row in graph.before:
        for node, before in enumerate(row.tolist()):
            if before < len(durations):
                followers[before].append(node)
    starts, ends, now = np.zeros(len(durations)), np.zeros(len(durations)), 0.0
    left = {int(node): float(durations[node]) for node in np.flatnonzero(waits == 0)}
    while left:
        busy = {group_of[node] for node in left if node in group_of}
        pace = {node: _pace(group_of.get(node), busy, pools) for node in left}
        step = min(rest / pace[node] for node, rest in left.items())
        now += step
        ended = [node for node, rest in left.items() if rest / pace[node] <= step]
        left = {node: rest - step * pace[node] for node, rest in left.items() if node not in ended}
        for node in ended:
            ends[node] = now
            for follower in followers[node]:
                waits[follower] -= 1
                if not waits[follower]:
                    starts[follower], left[follower] = now, float(durations[follower])
    return starts, ends


def _pace(group: int | None, busy: set[int], pools: Sequence[SharedPool]) -> float:
    """How much faster a group goes than with all others at work; messages go as they do."""
    return min((pool.pace(busy) for pool in pools if group in pool.devices), default=1.0)


def _durations(
    graph: Graph, times: Sequence[StageTime], links: Sequence[Link], contention: float
) -> tuple[Floats, list[float]]:
    """Seconds of each node, and what pairs save each group."""
    # The columns are in the order of KINDS.
    table = np.array([(time.forward, time.backward, time.backward - time.weight, time.weight) for time in times])
    durations, hidden = np.empty(graph.before.shape[1]), list[float]()
    for order, nodes in zip(graph.orders, graph.actions, strict=True):
        durations[nodes] = table[order.stage, order.kind]
        hidden.append(_hide(order, nodes, times, durations, contention) if len(order.joined) else 0.0)
    if len(graph.messages):
        travel = np.array([(link.backward, link.forward) for link in links])
        durations[graph.messages] = travel[graph.message_facts[:, 4], graph.message_facts[:, 3]]
    return durations, hidden


def _hide(order: Order, nodes: Integers, times: Sequence[StageTime], durations: Floats, contention: float) -> float:
    """Shortens the actions of pairs: of each its computing is left, with what the other sends beside it."""
    sent = np.array([(time.forward_sent, time.backward_sent) for time in times])
    first, second = nodes[order.joined], nodes[order.joined + 1]
    there, back = sent[order.stage[order.joined], 0], sent[order.stage[order.joined + 1], 1]
    before = float(durations[first].sum() + durations[second].sum())
    durations[first] = beside(durations[first] - there, back, contention)
    durations[second] = beside(durations[second] - back, there, contention)
    return before - float(durations[first].sum() + durations[second].sum())


def _finish(
    graph: Graph, ends: Floats, times: Sequence[StageTime], tied: Sequence[Tied], norm: float | None
) -> list[Span]:
    """What happens once a step, group by group, from when the group is free, or all that take part are."""
    free = [float(ends[nodes[-1]]) if len(nodes) else 0.0 for nodes in graph.actions]
    own = graph.stages
    spans: list[Span] = []

    def run(kind: SpanKind, group: int, duration: float, earliest: float = 0.0) -> None:
        start = max(free[group], earliest)
        free[group] = start + duration
        if duration:
            spans.append(Span(group, own[group][0], None, kind, start, free[group]))

    def alone(kind: Literal["reduce", "optimizer", "update"]) -> None:
        for group, stages in enumerate(own):
            run(kind, group, sum(getattr(times[stage], kind) for stage in stages))

    def together(kind: SpanKind, groups: Sequence[int], duration: float) -> None:
        last = max(free[group] for group in groups)
        for group in groups:
            run(kind, group, duration, last)

    alone("reduce")
    for each in tied:
        together("tied", [group for group, stages in enumerate(own) if set(stages) & set(each.stages)], each.seconds)
    if norm is not None:
        together("norm", range(len(own)), norm)
    alone("optimizer")
    alone("update")
    return spans


def _busy(graph: Graph, durations: Floats, finish: Sequence[Span]) -> tuple[float, ...]:
    busy = [float(durations[nodes].sum()) for nodes in graph.actions]
    for span in finish:
        busy[span.group] += span.end - span.start
    return tuple(busy)
