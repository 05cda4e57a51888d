"""The outer choices of a plan: degrees, micro-batches, schedule; and a plan made of one with its layers' options."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

from meshwright.model.operators import Attention
from meshwright.model.spans import format_spans
from meshwright.model.spec import Layer, LayerStack
from meshwright.plan.degrees import Degrees
from meshwright.plan.refine import Piece
from meshwright.plan.rules import Inputs
from meshwright.plan.rules_schedule import PLACEMENTS
from meshwright.plan.spec import STATEFUL, ClusterRef, Group, ModelRef, Plan, RecipeRef, Role, Row, Stage
from meshwright.plan.words import Schedule
from meshwright.search.problem import Problem

RECOMPUTES = ("full", "selective", "none")
"""From the least memory to the least time, and in the order in which a stage's layers take them."""


class Option(NamedTuple):
    """What a layer is free to do under an outer choice: what shards its equal parameters, its recompute, and axes over
    which it divides its samples, whatever the other layers do with them.
    """

    state: str | None
    recompute: str
    divides: tuple[str, ...] = ()

    def __str__(self) -> str:
        over = f", dp over {' and '.join(self.divides)}" if self.divides else ""
        return f"{self.state or 'none'}, recompute {self.recompute}{over}"


@dataclass(frozen=True)
class Choice:
    """Everything but the cut into stages and the options of layers."""

    degrees: Degrees
    pieces: tuple[Piece, ...]
    """The axes of each group, fastest first."""
    micro_batches: int
    schedule: Schedule = "1f1b"
    virtual: int = 1
    """Stages of each group."""
    sp: bool = True
    """Whether tp leaves activations between its matrices cut along the sequence."""

    @property
    def stages(self) -> int:
        """Of the whole pipeline."""
        return self.degrees.pp * self.virtual

    @property
    def devices(self) -> int:
        """Of all groups."""
        return self.degrees.pp * self.degrees.stage

    @cached_property
    def on(self) -> list[str]:
        """The group of each stage."""
        count = self.degrees.pp
        names = [chr(ord("a") + place) for place in range(count)] if count <= 26 else [f"g{x}" for x in range(count)]
        placed, _ = PLACEMENTS[self.schedule]
        turns = names * self.virtual if self.schedule == "interleaved" else names
        return placed(turns) if self.schedule != "interleaved" else turns

    @property
    def mesh(self) -> dict[str, int]:
        """Axes and sizes, slowest first."""
        return {piece.axis: piece.size for piece in reversed(self.pieces)} or {"dp": 1}

    @property
    def shards(self) -> bool:
        """Whether any axis has equal parameters that a state could shard."""
        return any(role.split in ("dp", "cp", "ulysses") for role in self.roles(None).values()) and bool(self.pieces)

    def roles(self, state: str | None, divides: Sequence[str] = ()) -> dict[str, Role]:
        """Of layers as a whole, which divide their samples over some axes that are there for another split."""
        pieces = (each._replace(dense="dp") if each.axis in divides else each for each in reversed(self.pieces))
        return {piece.axis: piece.role(sp=self.sp, state=state) for piece in pieces} or {"dp": Role("dp")}

    def expert_roles(self, state: str | None) -> dict[str, Role]:
        """Of routed experts."""
        return {piece.axis: piece.expert_role(sp=self.sp, state=state) for piece in reversed(self.pieces)}

    @property
    def apart(self) -> bool:
        """Whether experts have roles of their own."""
        return any(piece.expert != piece.dense for piece in self.pieces)


def rows_of(choice: Choice, layers: Sequence[Layer], options: Sequence[Option]) -> Iterator[Row]:
    """The rows of a stage: one for each run of layers with one option; experts that lie apart have their own."""
    for option, run in groupby(zip(layers, options, strict=True), lambda pair: pair[1]):
        together = [layer for layer, _ in run]
        for span in format_spans(layer.name for layer in together):
            yield Row(span=span, roles=choice.roles(option.state, option.divides), recompute=option.recompute)
        parts: dict[str, list[str]] = {}
        for layer in together if choice.apart else ():
            for part in layer.stack.parts:
                if part.experts:
                    parts.setdefault(part.name, []).append(layer.name)
        for name, names in parts.items():
            for span in format_spans(names):
                roles = choice.expert_roles(option.state)
                yield Row(span=span, part=name, roles=roles, recompute=option.recompute)


def _rows(choice: Choice, option: Option, stack: LayerStack) -> Iterator[Row]:
    """The same of a whole stack."""
    yield Row(span=stack.span, roles=choice.roles(option.state), recompute=option.recompute)
    for part in stack.parts if choice.apart else ():
        if part.experts:
            roles = choice.expert_roles(option.state)
            yield Row(span=stack.span, part=part.name, roles=roles, recompute=option.recompute)


def make_plan(problem: Problem, choice: Choice, cuts: Sequence[int], options: Sequence[Option]) -> Plan:
    """The plan of a choice, with the first layer of each stage (and the number of layers) and an option a layer."""
    layers = problem.model.layers
    stages = (
        Stage(on=name, layers=tuple(rows_of(choice, layers[first:after], options[first:after])))
        for name, (first, after) in zip(choice.on, pairwise(cuts), strict=True)
    )
    return _plan(problem, choice, tuple(stages))


def plain_plan(problem: Problem, choice: Choice) -> Plan:
    """All layers on the one group of a choice without a pipeline, with nothing sharded or computed again."""
    rows = (row for stack in problem.model.stacks for row in _rows(choice, Option(None, "none"), stack))
    return _plan(problem, choice, (Stage(on=choice.on[0], layers=tuple(rows)),))


def _plan(problem: Problem, choice: Choice, stages: tuple[Stage, ...]) -> Plan:
    names = dict.fromkeys(choice.on)
    return Plan(
        model=ModelRef(name=problem.model.name, fingerprint=problem.model.fingerprint),
        cluster=ClusterRef(name=problem.cluster.name, fingerprint=problem.cluster.fingerprint),
        recipe=RecipeRef(
            global_batch=problem.recipe.global_batch,
            sequence=problem.recipe.sequence,
            fingerprint=problem.recipe.fingerprint,
        ),
        micro_batches=choice.micro_batches,
        schedule=choice.schedule,
        groups={
            name: Group(devices=choice.degrees.devices(place), mesh=choice.mesh) for place, name in enumerate(names)
        },
        stages=stages,
        execution=problem.wishes.runs,
    )


def inputs_of(problem: Problem, plan: Plan) -> Inputs:
    """A plan with what it is for."""
    return Inputs(plan, problem.model, problem.cluster, problem.recipe)


def attends(layer: Layer) -> bool:
    """Whether there is a core attention that `selective` could compute again."""
    return any(isinstance(operator, Attention) for operator in layer.stack.operators)


def degrees_of(choice: Choice, states: Sequence[str | None] = ()) -> str:
    """A choice in short, with the states that its layers have.

    >>> degrees = Degrees(tp=8, ulysses=1, cp=1, pp=4, ep=1, etp=8, dp=2, rank_order="megatron")
    >>> degrees_of(Choice(degrees, (), 64, "interleaved", 5))
    'tp 8, pp 4, dp 2, 64 micro-batches, interleaved x 5'
    >>> degrees_of(Choice(degrees, (), 64), ["zero1", None])
    'tp 8, pp 4, dp 2, zero1 and no state, 64 micro-batches, 1f1b'
    """
    degrees = choice.degrees
    names = [
        f"{name} {getattr(degrees, name)}" for name in ("tp", "ulysses", "cp", "pp", "ep") if getattr(degrees, name) > 1
    ]
    if degrees.ep > 1 and degrees.etp != degrees.tp:
        names.append(f"etp {degrees.etp}")
    if any(not piece.shards for piece in choice.pieces):
        inside = math.prod(piece.size for piece in choice.pieces if piece.dense in STATEFUL and piece.shards)
        names.append(f"shard {inside}")
    schedule = f", {choice.schedule}" + (f" x {choice.virtual}" if choice.virtual > 1 else "") if degrees.pp > 1 else ""
    said = [" and ".join(state or "no state" for state in states)] if any(states) else []
    return ", ".join([*names, f"dp {degrees.dp}", *said, f"{choice.micro_batches} micro-batches"]) + schedule
