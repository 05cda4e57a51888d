"""What layers cost under the options of an outer choice, by the cost core's own functions, a layer of a kind at a time.

One placement stands for all stages of a choice: groups that lie alike cost alike. A layer is timed in a block of its
own, so that an option of a kind is computed once, however many layers take it.
"""

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from meshwright.cost.activations import Activations, layer_activations
from meshwright.cost.blocks import Block
from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.cost.collectives import TRAFFIC, Network, seconds
from meshwright.cost.compute import machines
from meshwright.cost.flows import Flow
from meshwright.cost.layer_states import States, layer_states
from meshwright.cost.layer_times import OneWay, compute_layer, keep_layer
from meshwright.cost.overlap import MIB
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Learning
from meshwright.cost.volumes import edge_crossing
from meshwright.cost.wires import Wires
from meshwright.model.spec import Layer
from meshwright.plan.stage_cut import numbered_layers
from meshwright.search.choice import Choice, Option, attends, inputs_of, make_plan, plain_plan, rows_of
from meshwright.search.passing import Passing
from meshwright.search.problem import Problem


class Seconds(NamedTuple):
    """One layer of a kind under one option, on one rank."""

    forward: Passing
    backward: Passing
    weight: float
    """Of backward, the gradients of the weights."""
    reduce: float
    """Seconds that the gradients take on the links once a step, in full buckets."""
    finish: float
    """Optimizer and gathering of what it changed."""


class Computed(NamedTuple):
    """What the same layer computes and exchanges, whatever shards its states."""

    forward: Passing
    backward: Passing
    weight: float


class Bytes(NamedTuple):
    """The same layer's memory."""

    states: States
    kept: Activations

    @property
    def again(self) -> float:
        """What backward computes again of what it needs."""
        return self.kept.whole - self.kept.kept


class Bench:
    """The costs of a choice. What a `replica` computes alike, and what a `twin` keeps alike, is taken from there: a
    bench of fewer ranks that have all that one micro-batch needs, and one of the same mesh with other micro-batches.
    """

    def __init__(
        self,
        problem: Problem,
        choice: Choice,
        calibration: Calibration | None = None,
        *,
        replica: "Bench | None" = None,
        twin: "Bench | None" = None,
        network: Network | None = None,
    ) -> None:
        self.problem, self.choice, self.calibration = problem, choice, calibration or public_calibration()
        self.network = network
        self._replica, self._twin = replica, twin
        shared = any(pool.compute_units is not None for pool in problem.cluster.pools)
        self.single = choice if shared and choice.degrees.pp == 1 else one_stage(choice)
        self.group = self.single.on[0]
        self._blocks: dict[tuple[object, ...], Block] = {}
        self._computed: dict[Block, Computed] = {}
        self._states: dict[Block, Seconds] = {}
        self._seconds: dict[tuple[object, ...], Seconds] = {}

    @cached_property
    def placement(self) -> Placement:
        """All layers on the first group."""
        return Placement(inputs_of(self.problem, plain_plan(self.problem, self.single)), self.calibration)

    @cached_property
    def wires(self) -> Wires:
        """Between the ranks of the group."""
        return Wires(self.placement, self.network)

    @cached_property
    def travel(self) -> "dict[tuple[str, str], tuple[float, float]]":
        """Seconds that activations of a micro-batch, and their gradients, are on their way from one group to the next;
        from the last to the first as well, where that could run stages after its own.
        """
        degrees, layers = self.choice.degrees, self.problem.model.layers
        turns = replace(self.choice, schedule="interleaved", virtual=min(2, len(self.body) // degrees.pp))
        starts = [0, *(self.body[place] for place in range(1, turns.stages)), len(layers)]
        plan = make_plan(self.problem, turns, starts, [Option(None, "none")] * len(layers))
        placement = Placement(inputs_of(self.problem, plan), self.calibration)
        wires, found = Wires(placement, self.network), dict[tuple[str, str], tuple[float, float]]()
        for edge in placement.edges:
            source, target = edge.source.group, edge.target.group
            if source != target and (source, target) not in found:
                there, back = edge_crossing(placement, edge)
                found[source, target] = wires.crossing(source, target, there), wires.crossing(target, source, back)
        return found

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
            done = self.computed(layer, option.recompute, option.divides)
            kept = self._kept(layer, option.state, option.divides)
            self._seconds[key] = _joined(done, kept)
        return self._seconds[key]

    def computed(self, layer: Layer, recompute: str, divides: tuple[str, ...] = ()) -> "Computed":
        """What one layer computes and exchanges."""
        replica = self._repeated(layer, divides)
        if replica is not None:
            return replica.computed(layer, recompute)
        block = self.block(layer, Option(None, recompute, divides))
        if block not in self._computed:
            forward, backward, weight = compute_layer(self.placement, self.wires, block)
            self._computed[block] = Computed(self._passing(forward), self._passing(backward), weight)
        return self._computed[block]

    def bytes(self, layer: Layer, option: Option) -> Bytes:
        """Of one layer: what it keeps of its parameters by its state, what of its activations by its recompute."""
        return Bytes(
            self._resting(layer, option.state, option.divides), self.alive(layer, option.recompute, option.divides)
        )

    def _resting(self, layer: Layer, state: str | None, divides: tuple[str, ...]) -> States:
        if self._twin is not None:
            return self._twin._resting(layer, state, divides)
        return layer_states(self.placement, self.block(layer, Option(state, self.fastest(layer), divides)))

    def alive(self, layer: Layer, recompute: str, divides: tuple[str, ...] = ()) -> Activations:
        """What one layer keeps of its activations."""
        replica = self._repeated(layer, divides)
        if replica is not None:
            return replica.alive(layer, recompute)
        return layer_activations(self.placement, self.block(layer, Option(None, recompute, divides)))

    def _repeated(self, layer: Layer, divides: tuple[str, ...]) -> "Bench | None":
        """The replica, where a layer is as it is there: it has no samples to divide over other axes."""
        return None if divides or self._elsewhere(layer) else self._replica

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

    def block(self, layer: Layer, option: Option) -> Block:
        """One layer under an option."""
        key = self._kind(layer), option
        if key not in self._blocks:
            self._blocks[key] = self._make(layer, option)
        return self._blocks[key]

    def _learning(self, layer: Layer) -> Learning:
        placement, name = self.placement, layer.name
        lora = placement.recipe.trainable.lora
        return Learning(placement.learns[name], placement.fed[name], lora, self._elsewhere(layer))

    def _elsewhere(self, layer: Layer) -> bool:
        """Whether a layer's parameters are copies of those of another stage."""
        ties = self.problem.model.tied_layers if self.choice.degrees.pp > 1 else ()
        return any(layer.name in copies for _, copies in ties)

    def _make(self, layer: Layer, option: Option) -> Block:
        last = layer is self.problem.model.layers[-1]
        learning, rows = self._learning(layer), list(rows_of(self.choice, [layer], [option]))
        row, parts = rows[0], {each.part: each for each in rows[1:] if each.part}
        likeness = self.placement.number(("option", id(layer.stack), learning, option, last))
        return Block(0, self.group, layer.stack, row, parts, learning, (layer.name,), last=last, likeness=likeness)

    def _kept(self, layer: Layer, state: str | None, divides: tuple[str, ...]) -> Seconds:
        """What one layer's states take."""
        if self._twin is not None:
            return self._twin._kept(layer, state, divides)
        block = self.block(layer, Option(state, self.fastest(layer), divides))
        if block not in self._states:
            ways = OneWay(), OneWay()
            found = keep_layer(self.placement, self.wires, block, ways)
            forward, backward = map(self._passing, ways)
            reduce, finish = sum(map(self._streamed, found.once)), found.optimizer.total + found.update.total
            self._states[block] = Seconds(forward, backward, 0.0, reduce, finish)
        return self._states[block]

    def _passing(self, way: OneWay) -> Passing:
        apart = self.placement.overlaps(self.group)
        compute, host = way.spent.total, self.launch * way.launches
        return Passing(compute, way.gather, way.reduce, host, apart, way.pieces)

    def _streamed(self, flow: Flow) -> float:
        way, ranks = self.wires.way(self.group, flow.axes, TRAFFIC[flow.kind])
        bucket = self.placement.plan.execution.bucket_mib * MIB
        return flow.times * flow.bytes / bucket * seconds(flow.kind, bucket, ranks, way)


def _joined(done: "Computed", kept: Seconds) -> Seconds:
    forward, backward = done.forward.plus(kept.forward), done.backward.plus(kept.backward)
    return kept._replace(forward=forward, backward=backward, weight=done.weight)


def one_stage(choice: Choice) -> Choice:
    """The first group of a choice, alone."""
    return replace(choice, degrees=replace(choice.degrees, pp=1), schedule="1f1b", virtual=1)
