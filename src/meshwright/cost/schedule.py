"""When everything happens: an event simulation of a pipeline.

Each stage runs an ordered list of actions on its own devices. An action starts when its stage is free and what it needs
has arrived: a forward needs the forwards of the stages that it reads, a backward its own forward and the backwards of
the stages that read it. What travels between two stages takes its time, but no stage's. With orders fixed, every start
is the latest of a few ends, so each is computed once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from meshwright.errors import PlanError

ActionKind = Literal["forward", "backward"]
SpanKind = Literal["forward", "backward", "reduce", "norm", "optimizer", "update"]


class Action(NamedTuple):
    """One micro-batch through one stage, one way."""

    kind: ActionKind
    micro_batch: int


class StageTime(NamedTuple):
    """Seconds of one stage: of a micro-batch each way, and at the end of a step."""

    forward: float
    backward: float
    reduce: float = 0.0
    """Gradients, after the last backward."""
    optimizer: float = 0.0
    update: float = 0.0
    """Gathering of the parameters that the optimizer has changed."""


class Link(NamedTuple):
    """A stage reads another: seconds that activations and their gradients travel."""

    source: int
    target: int
    forward: float = 0.0
    backward: float = 0.0


class Span(NamedTuple):
    """One bar of a timeline. `micro_batch` is none for what happens once a step."""

    stage: int
    micro_batch: int | None
    kind: SpanKind
    start: float
    end: float


class Timeline(NamedTuple):
    """A simulated step."""

    spans: tuple[Span, ...]
    """Stage by stage, in order of time."""
    seconds: float
    busy: tuple[float, ...]
    """Seconds that each stage works."""

    @property
    def bubble(self) -> float:
        """The share of the step that a stage waits, in the mean over stages."""
        return 1 - sum(self.busy) / (len(self.busy) * self.seconds) if self.seconds else 0.0


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """All forwards, then all backwards (Huang 2019).

    >>> [f"{action.kind[0]}{action.micro_batch}" for action in gpipe(0, 2, 2)]
    ['f0', 'f1', 'b0', 'b1']
    """
    numbers = range(micro_batches)
    return [*(Action("forward", number) for number in numbers), *(Action("backward", number) for number in numbers)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """As many forwards as stages follow, then a forward and a backward in turns (Narayanan 2019, section 3.2).

    >>> [f"{action.kind[0]}{action.micro_batch}" for action in one_forward_one_backward(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = min(stages - stage, micro_batches)
    actions = [Action("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        actions.append(Action("backward", number))
        if ahead + number < micro_batches:
            actions.append(Action("forward", ahead + number))
    return actions


ORDERS: dict[str, Callable[[int, int, int], list[Action]]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}
"""Schedule → the order of a stage's actions, from its number, the number of stages and of micro-batches."""


def orders(schedule: str, stages: int, micro_batches: int) -> list[list[Action]]:
    """The order of each stage's actions. Raises PlanError for a schedule that cannot be estimated yet."""
    if schedule not in ORDERS:
        known = " or ".join(f"'{name}'" for name in ORDERS)
        raise PlanError(f"schedule: cannot estimate schedule '{schedule}' yet; {known} can be")
    return [ORDERS[schedule](stage, stages, micro_batches) for stage in range(stages)]


class InFlight(NamedTuple):
    """The most micro-batches between their forward and backward, the one at work included."""

    early: int
    """Up to the first backward, while no gradients are there."""
    late: int
    """After it; 0 where nothing follows."""


def in_flight(order: Sequence[Action], kind: ActionKind) -> InFlight:
    """How many micro-batches a stage holds while it does one kind of action.

    >>> in_flight(orders("1f1b", 4, 8)[1], "backward")
    InFlight(early=3, late=3)
    >>> in_flight(orders("gpipe", 4, 8)[1], "backward")
    InFlight(early=8, late=7)
    """
    early = late = now = done = 0
    for action in order:
        now += action.kind == "forward"
        if action.kind == kind:
            early, late = (early, max(late, now)) if done else (max(early, now), late)
        if action.kind == "backward":
            now, done = now - 1, done + 1
    return InFlight(early, late)


def simulate(
    order: Sequence[Sequence[Action]], times: Sequence[StageTime], links: Sequence[Link], *, norm: float | None = None
) -> Timeline:
    """Run each stage's actions, then what ends a step: gradients, optimizer, parameters.

    `norm` is the time of the reduction of the gradient norm, for which all stages wait until the last has its
    gradients; none where gradients are not clipped, and every stage goes on by itself. Raises PlanError where stages
    wait for each other in a circle.
    """
    stages = [_Stage(number, actions, times[number]) for number, actions in enumerate(order)]
    for link in links:
        stages[link.target].reads.append((stages[link.source], link.forward))
        stages[link.source].read_by.append((stages[link.target], link.backward))
    waiting = list(stages)
    while waiting:
        moved = [stage.run() for stage in waiting]
        if not any(moved):
            names = ", ".join(str(stage.number) for stage in waiting)
            raise PlanError(f"stages {names} wait for each other in a circle: a stage must read earlier ones only")
        waiting = [stage for stage in waiting if stage.next < len(stage.order)]
    _finish(stages, norm)
    seconds = max(stage.free for stage in stages)
    spans = tuple(span for stage in stages for span in stage.spans)
    busy = [sum(span.end - span.start for span in stage.spans) for stage in stages]
    return Timeline(spans, seconds, tuple(busy))


class _Stage:
    """One stage while it is simulated: how far it has come, and when its actions ended (not yet: infinitely late)."""

    def __init__(self, number: int, order: Sequence[Action], time: StageTime) -> None:
        self.number, self.order, self.time = number, order, time
        self.next, self.free = 0, 0.0
        self.forwards, self.backwards = [math.inf] * len(order), [math.inf] * len(order)
        self.reads: list[tuple[_Stage, float]] = []
        self.read_by: list[tuple[_Stage, float]] = []
        self.spans: list[Span] = []

    def run(self) -> bool:
        """Go on as far as what has happened elsewhere allows; whether it got any further."""
        before, count = self.next, len(self.order)
        while self.next < count:
            kind, number = self.order[self.next]
            ready = self._forward_ready(number) if kind == "forward" else self._backward_ready(number)
            if ready == math.inf:
                break
            start = max(self.free, ready)
            ends, duration = self._track(kind)
            self.free = ends[number] = start + duration
            self.spans.append(Span(self.number, number, kind, start, self.free))
            self.next += 1
        return self.next > before

    def _track(self, kind: ActionKind) -> tuple[list[float], float]:
        return (self.forwards, self.time.forward) if kind == "forward" else (self.backwards, self.time.backward)

    def _forward_ready(self, number: int) -> float:
        """When what a forward needs has arrived."""
        latest = 0.0
        for other, travel in self.reads:
            latest = max(latest, other.forwards[number] + travel)
        return latest

    def _backward_ready(self, number: int) -> float:
        """When what a backward needs has arrived."""
        latest = self.forwards[number]
        for other, travel in self.read_by:
            latest = max(latest, other.backwards[number] + travel)
        return latest

    def end_with(self, kind: SpanKind, duration: float, earliest: float = 0.0) -> None:
        """What happens once a step, from when the stage is free."""
        start = max(self.free, earliest)
        self.free = start + duration
        if duration:
            self.spans.append(Span(self.number, None, kind, start, self.free))


def _finish(stages: Sequence[_Stage], norm: float | None) -> None:
    for stage in stages:
        stage.end_with("reduce", stage.time.reduce)
    ready = max(stage.free for stage in stages) if norm is not None else 0.0
    for stage in stages:
        stage.end_with("norm", norm or 0.0, ready)
        stage.end_with("optimizer", stage.time.optimizer)
        stage.end_with("update", stage.time.update)
