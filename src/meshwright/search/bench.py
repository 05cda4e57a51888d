"""What layers cost under the options of an outer choice, by the cost core's own functions, a layer of a kind at a time.

One placement stands for all stages of a choice: groups that lie alike cost alike. A layer is timed in a block of its
own, so that an option of a kind is computed once, however many layers take it.
"""

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from meshwright.cost.activations import Activations, layer_activations
from meshwright.cost.blocks import Block
from meshwright.cost.calibration import Calibration
from meshwright.cost.collectives import TRAFFIC, seconds
from meshwright.cost.compute import machines
from meshwright.cost.flows import Flow
from meshwright.cost.layer_states import States, layer_states
from meshwright.cost.layer_times import OneWay, adding_up, time_layer
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Learning
from meshwright.cost.volumes import has_backward
from meshwright.cost.wires import Wires
from meshwright.model.spec import Layer
from meshwright.plan.stage_cut import numbered_layers
from meshwright.search.choice import Choice, Option, attends, inputs_of, plain_plan, rows_of
from meshwright.search.frontier import Frontier
from meshwright.search.problem import Problem

_MUCH = 2.0**40
"""Bytes of a collective whose latency does not matter."""


class Passing(NamedTuple):
    """Layers for one micro-batch, one way, in seconds of what runs side by side."""

    compute: float
    """With the communication that stands in its way."""
    gather: float
    """Of sharded parameters."""
    reduce: float
    """Of gradients."""
    host: float
    """Launching."""
    apart: bool = True
    """Whether these run side by side at all."""

    def times(self, count: int) -> "Passing":
        """So many layers."""
        compute, gather, reduce, host, apart = self
        return Passing(count * compute, count * gather, count * reduce, count * host, apart)

    def plus(self, other: "Passing") -> "Passing":
        """Both, one after the other."""
        return Passing(
            self.compute + other.compute,
            self.gather + other.gather,
            self.reduce + other.reduce,
            self.host + other.host,
            other.apart,
        )

    def least(self, first: "Passing", last: "Passing", contention: float) -> float:
        """What layers take at least of which these are the first and the last (`cost.overlap`): the links' time; the
        computing's with the first gather and the last reduction, which nothing can hide, and with what it loses while
        the links do the rest, since whatever is not beside computing is waited for; and the host's.

        >>> four = Passing(compute=4.0, gather=2.0, reduce=0.0, host=0.0)
        >>> four.least(Passing(1.0, 0.5, 0.0, 0.0), Passing(1.0, 0.5, 0.0, 0.0), contention=0.0)
        4.5
        """
        link = self.gather + self.reduce
        if not self.apart:
            return self.compute + link + self.host
        alone = first.gather + last.reduce
        slowed = (link - alone) * contention / (1 + contention)
        return max(self.compute + alone + slowed, link, self.host)


class Seconds(NamedTuple):
    """One layer of a kind under one option, on one rank."""

    forward: Passing
    backward: Passing
    weight: float
    """Of backward, the gradients of the weights."""
    adding: float
    """Of backward, to add a micro-batch's gradients to the step's: what a state shards."""
    reduce: float
    """Seconds that the gradients take on the links once a step, latency left out."""
    finish: float
    """Optimizer and gathering of what it changed."""


class Bytes(NamedTuple):
    """The same layer's memory."""

    states: States
    kept: Activations

    @property
    def again(self) -> float:
        """What backward computes again of what it needs."""
        return self.kept.whole - self.kept.kept


class Bench:
    """The costs of a choice."""

    def __init__(self, problem: Problem, choice: Choice, calibration: Calibration | None = None) -> None:
        self.problem, self.choice = problem, choice
        shared = any(pool.compute_units is not None for pool in problem.cluster.pools)
        single = choice if shared and choice.degrees.pp == 1 else one_stage(choice)
        plan = plain_plan(problem, single)
        self.placement = Placement(inputs_of(problem, plan), calibration)
        self.wires = Wires(self.placement)
        self.group = single.on[0]
        self.fronts: dict[tuple[object, ...], Frontier] = {}
        """Ways to recompute ranges of layers, for `costs`."""
        self._blocks: dict[tuple[object, ...], Block] = {}
        self._times: dict[Block, Seconds] = {}
        self._seconds: dict[tuple[object, ...], Seconds] = {}

    @cached_property
    def launch(self) -> float:
        """Seconds to launch a kernel, where that is not done ahead."""
        return max(machine.reached.launch for machine in machines(self.placement, self.group))

    def seconds(self, layer: Layer, option: Option) -> Seconds:
        """Of one layer; those of equal layers are computed once. What a layer computes does not depend on its state but
        for adding gradients up, nor what is moved for its state on its recompute.
        """
        key = self._kind(layer), option
        if key not in self._seconds:
            found = self._timed(self._block(layer, option._replace(state=None)))
            if option.state is not None:
                state = self._timed(self._block(layer, Option(option.state, self.fastest(layer))))
                found = _joined(found, state)
            self._seconds[key] = found
        return self._seconds[key]

    def bytes(self, layer: Layer, option: Option) -> Bytes:
        """Of one layer: what it keeps of its parameters by its state, what of its activations by its recompute."""
        states = self._block(layer, Option(option.state, self.fastest(layer)))
        kept = self._block(layer, option._replace(state=None))
        return Bytes(layer_states(self.placement, states), layer_activations(self.placement, kept))

    def recomputes(self, layer: Layer) -> tuple[str, ...]:
        """What a layer may compute again, from the least memory to the least time: numbered layers what the wishes
        allow, others nothing.
        """
        if layer.index is None:
            return ("none",)
        allowed = self.problem.wishes.recomputes
        return tuple(name for name in allowed if name != "selective" or attends(layer)) or ("none",)

    def fastest(self, layer: Layer) -> str:
        """The recompute that takes least time."""
        return self.recomputes(layer)[-1]

    @cached_property
    def body(self) -> list[int]:
        """Where the numbered layers stand."""
        return numbered_layers(self.problem.model)

    def _kind(self, layer: Layer) -> tuple[int, bool]:
        return id(layer.stack), layer is self.problem.model.layers[-1]

    def _block(self, layer: Layer, option: Option) -> Block:
        key = self._kind(layer), option
        if key not in self._blocks:
            self._blocks[key] = self._make(layer, option)
        return self._blocks[key]

    def _learning(self, layer: Layer) -> Learning:
        placement, name = self.placement, layer.name
        copies = {copy for _, others in placement.model.tied_layers for copy in others}
        elsewhere = self.choice.degrees.pp > 1 and name in copies
        return Learning(placement.learns[name], placement.fed[name], placement.recipe.trainable.lora, elsewhere)

    def _make(self, layer: Layer, option: Option) -> Block:
        last = layer is self.problem.model.layers[-1]
        learning, rows = self._learning(layer), list(rows_of(self.choice, [layer], [option]))
        row, parts = rows[0], {each.part: each for each in rows[1:] if each.part}
        likeness = self.placement.number(("option", id(layer.stack), learning, option, last))
        return Block(0, self.group, layer.stack, row, parts, learning, (layer.name,), last=last, likeness=likeness)

    def _timed(self, block: Block) -> Seconds:
        if block not in self._times:
            found = time_layer(self.placement, self.wires, block)
            self._times[block] = Seconds(
                forward=self._passing(found.forward),
                backward=self._passing(found.backward),
                weight=found.weight,
                adding=adding_up(self.placement, block) if has_backward(block) else 0.0,
                reduce=sum(self._streamed(flow) for flow in found.once),
                finish=found.optimizer.total + found.update.total,
            )
        return self._times[block]

    def _passing(self, way: OneWay) -> Passing:
        apart = self.placement.overlaps(self.group)
        compute, host = way.spent.total, self.launch * way.launches
        return Passing(compute, way.gather, way.reduce, host, apart)

    def _streamed(self, flow: Flow) -> float:
        way, ranks = self.wires.way(self.group, flow.axes, TRAFFIC[flow.kind])
        return flow.times * flow.bytes / _MUCH * seconds(flow.kind, _MUCH, ranks, way)


def _joined(computed: Seconds, sharded: Seconds) -> Seconds:
    """What is computed of the first, and what is moved and stepped of the second."""
    forward, backward = (
        own._replace(gather=other.gather, reduce=other.reduce)
        for own, other in ((computed.forward, sharded.forward), (computed.backward, sharded.backward))
    )
    backward = backward._replace(compute=backward.compute - computed.adding + sharded.adding)
    return sharded._replace(forward=forward, backward=backward, weight=computed.weight)


def one_stage(choice: Choice) -> Choice:
    """The first group of a choice, alone."""
    return replace(choice, degrees=replace(choice.degrees, pp=1), schedule="1f1b", virtual=1)
