"""What each group of a pipeline does, in order: the schedule's actions, with the messages between them.

All groups' lists come from one simulation, which posts a message on both sides at once. Between any two ranks the
messages therefore stand in one order on both, so that a backend that works through them one by one cannot lock up.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from meshwright.plan.orders import Action, ActionKind, orders_of
from meshwright.plan.spec import Plan

Way = Literal["forward", "backward"]


class Edge(NamedTuple):
    """A stage, and the one that reads its output."""

    source: int
    target: int


class Post(NamedTuple):
    """This group's side of a message of one micro-batch over an edge: activations forward, their gradient backward."""

    does: Literal["send", "receive"]
    edge: Edge
    way: Way
    micro_batch: int

    @property
    def stage(self) -> int:
        """This group's."""
        sender, receiver = self.edge if self.way == "forward" else self.edge[::-1]
        return sender if self.does == "send" else receiver

    def __str__(self) -> str:
        what = "activations" if self.way == "forward" else "gradients"
        other = next(stage for stage in self.edge if stage != self.stage)
        to, does = ("to", "sending") if self.does == "send" else ("from", "receiving")
        return f"{does} {what} of micro-batch {self.micro_batch} {to} stage {other}"


Step = Action | Post
_GRADIENTS: tuple[ActionKind, ...] = ("backward", "input")
"""Actions that give the gradient of a stage's input."""


def backward_follows_at_once(plan: Plan) -> bool:
    """Whether every micro-batch's backward through the last stage comes right after its forward there, so that its last
    layer's parameters need not be gathered again.
    """
    last = len(plan.stages) - 1
    actions = list(orders_of(plan)[plan.stages[last].on])
    return all(
        (after.stage, after.micro_batch) == (before.stage, before.micro_batch)
        for before, after in pairwise(actions)
        if before.kind == "forward" and before.stage == last
    )


def edges_of(plan: Plan) -> tuple[Edge, ...]:
    """Each stage reads the one before it."""
    return tuple(Edge(number, number + 1) for number in range(len(plan.stages) - 1))


def timetable(plan: Plan) -> dict[str, tuple[Step, ...]]:
    """The steps of each group, by its name. Stages on one group pass activations without messages.

    Raises PlanError where the stages do not lie as the schedule needs.
    """
    waiting = {name: deque(order) for name, order in orders_of(plan).items()}
    steps: dict[str, list[Step]] = {name: [] for name in waiting}
    on, edges, done = [stage.on for stage in plan.stages], edges_of(plan), set[Action]()
    while any(waiting.values()):
        ready = [name for name, actions in waiting.items() if actions and _ready(actions[0], edges, done)]
        assert ready, "the schedule locks up"
        for name in ready:
            action = waiting[name].popleft()
            done.add(action)
            steps[name].append(action)
            for edge, way in _passes_on(action, edges):
                sender, receiver = (edge.source, edge.target) if way == "forward" else (edge.target, edge.source)
                if on[sender] != on[receiver]:
                    steps[on[sender]].append(Post("send", edge, way, action.micro_batch))
                    steps[on[receiver]].append(Post("receive", edge, way, action.micro_batch))
    return {name: tuple(found) for name, found in steps.items()}


def _ready(action: Action, edges: Sequence[Edge], done: set[Action]) -> bool:
    """Whether all is done that an action needs."""
    stage, kind, number = action
    if kind == "weight":
        return Action(stage, "input", number) in done
    if kind == "forward":
        return all(Action(edge.source, "forward", number) in done for edge in edges if edge.target == stage)
    after = (edge.target for edge in edges if edge.source == stage)
    return Action(stage, "forward", number) in done and all(
        any(Action(other, gives, number) in done for gives in _GRADIENTS) for other in after
    )


def _passes_on(action: Action, edges: Sequence[Edge]) -> list[tuple[Edge, Way]]:
    if action.kind == "forward":
        return [(edge, "forward") for edge in edges if edge.source == action.stage]
    return [(edge, "backward") for edge in edges if edge.target == action.stage and action.kind in _GRADIENTS]
