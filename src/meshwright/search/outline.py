"""What no plan of a shape can beat, for all shapes at once, before any layer is costed.

Beside the FLOPs count what states move and what experts exchange, over links as good as they can be, and what must rest
in memory on the mean stage. Of P stages that together take c seconds for a micro-batch, and l on the links beside it,
M micro-batches take at least M max(c, l) / P; gradients that are reduced once a step can hide behind no more than the
last backward.

Of n ranks that lie s devices apart or more, no more than ceil(u / s) are in a unit of u devices. Where that is fewer
than n, a ring leaves the unit, over as many shares of its cards; of what each rank spreads, the part that is not for
these few leaves it (`cost.collectives`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.flows import role_flows, roles_of
from meshwright.cost.volumes import held_by, widths_of
from meshwright.model.operators import Experts
from meshwright.model.spec import Layer, ModelSpec
from meshwright.search.bench import Bench
from meshwright.search.choice import Option
from meshwright.search.frontier import Floats, Integers
from meshwright.search.room import Room
from meshwright.search.space import Shape

Numbers: TypeAlias = Floats | float


class Kept(NamedTuple):
    """What shards equal parameters."""

    state: str | None
    inside: bool = False
    """Over ranks of a node alone, of which the others are replicas."""


class Weights(NamedTuple):
    """Numbers that learn."""

    dense: float
    experts: float

    def over(self, tensor: Floats, experts: Floats) -> Floats:
        """Of a rank, where no more than so many have parts of them."""
        return self.dense / tensor + self.experts / experts

    @property
    def all(self) -> float:
        """Both."""
        return self.dense + self.experts


class Level(NamedTuple):
    """What leads out of units of so many devices."""

    unit: int
    own: float
    """Bytes per second of one device's share of the cards."""


class Moved(NamedTuple):
    """Seconds on the links of all layers under a state, for each shape."""

    forward: Numbers
    backward: Numbers
    """Of a micro-batch, beside computing."""
    once: Numbers
    """Gradients, from the last backward on."""
    after: Numbers
    """Parameters that the optimizer has changed."""

    def at(self, place: "Integers | slice | int") -> "Moved":
        """Of one shape, or some of them, which are the last of all dimensions."""
        return Moved(*(np.asarray(each)[..., place] for each in self))


class Facts:
    """What is known of a model on one device (`bench`), and on two that share its layers, where there are two."""

    def __init__(self, bench: Bench, pair: Bench | None) -> None:
        problem, placement = bench.problem, bench.placement
        self.widths, self.execution = widths_of(placement), placement.plan.execution
        self.scatters = problem.wishes.scatters
        self.levels = list(_levels(bench)) if len(problem.cluster.pools) == 1 else []
        """None where devices are of several pools, for which there is no bound by links."""
        self.layers = [_weights(bench, layer) for layer in problem.model.layers]
        self.all = Weights(*map(sum, zip(*self.layers, strict=True)))
        self._optimizers = [bench.bytes(layer, _plain(bench, layer)).states.optimizer for layer in problem.model.layers]
        self.optimizer = sum(self._optimizers)
        """Bytes of its states."""
        sent = (_dispatched(bench, layer) for layer in problem.model.layers)
        self.dispatched = tuple(map(sum, zip(*sent, strict=True)))
        """Bytes that experts are sent for the whole batch, and gradients that come back."""
        summed = [_summed(pair, layer) for layer in problem.model.layers] if pair else [(0.0, 0.0)]
        self.summed = tuple(map(sum, zip(*summed, strict=True)))
        """Bytes that tensor ranks gather and scatter for the whole batch, both ways, but for experts."""
        room = Room(placement, bench.group, pipeline=False, limit=problem.wishes.memory_limit)
        self.capacity, self.moving = room.resting, room.moving
        self.by_matrices = placement.kernels.gathers_matrices
        self.node = problem.cluster.pools[0].levels[0].size
        self.begun = placement.kernels.keeps_gradients
        self.main = _main(problem.model)
        self.of_main = self.layers[problem.model.layers.index(self.main)]
        numbered = [place for place, layer in enumerate(problem.model.layers) if layer.index is not None]
        count = len(self.layers)
        self.ends = (range(numbered[0]), range(numbered[-1] + 1, count)) if numbered else (range(0), range(0))
        """Where layers stand that are before and after the numbered ones."""

    def held(self, places: Sequence[int]) -> tuple[Weights, float]:
        """Of layers at these places, the numbers that learn, and bytes of the optimizer's states."""
        learn = [self.layers[place] for place in places]
        numbers = Weights(sum(each.dense for each in learn), sum(each.experts for each in learn))
        return numbers, sum(self._optimizers[place] for place in places)


def _main(model: ModelSpec) -> Layer:
    """A layer of those that are alike and most in number."""
    numbered = [layer for layer in model.layers if layer.index is not None] or list(model.layers)
    counts = Counter(id(layer.stack) for layer in numbered)
    return max(numbered[:-1] or numbered, key=lambda layer: counts[id(layer.stack)])


def _plain(bench: Bench, layer: Layer) -> Option:
    return Option(None, bench.fastest(layer))


def _weights(bench: Bench, layer: Layer) -> Weights:
    held = [held for _, held in held_by(bench.placement, bench.block(layer, _plain(bench, layer)))]
    return Weights(sum(each.dense for each in held), sum(each.experts for each in held))


def _dispatched(bench: Bench, layer: Layer) -> tuple[float, float]:
    there = back = 0.0
    for _, _, shares in bench.placement.row_shares(bench.block(layer, _plain(bench, layer))):
        for share in shares:
            if isinstance(share.operator, Experts):
                size = bench.placement.element * share.work.positions * share.operator.top_k * share.operator.hidden
                there, back = there + size, back + size * (share.passes or share.learns)
    return there, back


def _summed(bench: Bench, layer: Layer) -> tuple[float, float]:
    placement, there, back = bench.placement, 0.0, 0.0
    if "tensor" in placement.plan.execution.overlap:
        return 0.0, 0.0
    for row, _, shares in placement.row_shares(bench.block(layer, _plain(bench, layer))):
        roles = roles_of(row, placement.group(bench.group).mesh)
        dense = [share for share in shares if not isinstance(share.operator, Experts)]
        for flow in role_flows(dense, roles, placement.kernels, placement.element):
            size = flow.bytes * flow.times * (flow.purpose == "tensor")
            there, back = there + size * (flow.when == "forward"), back + size * (flow.when == "backward")
    return there, back


def _levels(bench: Bench) -> Iterator[Level]:
    cluster, unit = bench.wires.network.cluster, 1
    for level in cluster.pools[0].levels:
        cards = unit if level.cards is None else level.cards
        yield Level(unit, cluster.links[level.link].bandwidth * cards / unit)
        unit *= level.size


class Outline:
    """The shapes of a problem."""

    def __init__(self, facts: Facts, shapes: Sequence[Shape]) -> None:
        self.facts = facts
        table = np.array(shapes, dtype=float).reshape(-1, len(Shape._fields)).T
        self._tp, ulysses, cp, dp, self.pp, ep, self._etp, _, self.micro_batches = table
        self._spread, self._experts = ulysses * cp * dp, ep * self._etp
        self.stage = self._tp * self._spread

    def _sharing(self, kept: Kept) -> tuple[Floats, Floats]:
        """Ranks that shard dense parameters together, and experts', at most."""
        if not kept.inside:
            return self._spread, self.stage / self._experts
        inside = np.maximum(1.0, self.facts.node // self._tp)
        return inside, inside

    def exchanged(self, *, tensor: bool = True) -> tuple[Floats, Floats]:
        """Seconds that a micro-batch waits on its way to experts and between `tensor` ranks, all layers, both ways."""
        facts, outside = self.facts, np.zeros_like(self._tp)
        ranks, count = self.stage if facts.scatters else self._spread, self._experts / self._etp
        if facts.execution.dispatch == "copies" and "experts" not in facts.execution.overlap:
            for level in facts.levels:
                away = np.maximum(0.0, count - np.ceil(level.unit / self._etp)) / count
                outside = np.maximum(outside, away / level.own)
        sent, ring = 2 * outside / ranks, self._passed(1 / self._spread, self._tp, np.ones_like(self._tp))
        there, back = (
            (dispatched * sent + summed * ring * tensor) / self.micro_batches
            for dispatched, summed in zip(facts.dispatched, facts.summed, strict=True)
        )
        return there, back

    def _ring(self, width: float, of: Weights, kept: Kept) -> Floats:
        """Seconds to gather numbers of so many bytes over the ranks that hold equal ones, or to reduce them there."""
        dense = self._passed(width * of.dense / self._tp, self._sharing(kept)[0], self._tp)
        if kept.inside:
            return dense
        return dense + self._passed(width * of.experts / self._experts, self.stage / self._experts, self._experts)

    def _passed(self, size: Floats, ranks: Floats, apart: Floats) -> Floats:
        """Seconds in which so many bytes go round."""
        found = np.zeros_like(size)
        for level in self.facts.levels:
            inside = np.ceil(level.unit / apart)
            found = np.where(ranks > inside, np.maximum(found, size / (level.own * inside)), found)
        return found * (ranks - 1) / ranks

    def moved(self, kept: Kept) -> Moved:
        """What a state moves of all layers. The last layer's parameters may be there still when it runs backward."""
        found = self.moved_of(kept, self.facts.all)
        if kept.state != "zero3":
            return found
        return found._replace(
            backward=found.backward - self._ring(self.facts.widths.element, self.facts.layers[-1], kept)
        )

    def moved_of(self, kept: Kept, of: Weights) -> Moved:
        """What a state moves of layers with so many numbers."""
        none, widths = np.zeros_like(self._tp), self.facts.widths
        reduced, gathered = self._ring(widths.gradient, of, kept), self._ring(widths.element, of, kept)
        now, later = (reduced, none) if self._scatters(kept) else (none, reduced)
        if kept.state != "zero3":
            return Moved(none, now, later, none if kept.state is None else gathered)
        return Moved(gathered, now + gathered, later, none)

    def _scatters(self, kept: Kept) -> bool:
        return kept.state in ("zero2", "zero3") and self.facts.execution.sync == "each"

    def _numbers(self, of: Weights, kept: Kept) -> tuple[Floats, Floats]:
        """Numbers of a rank, before and after a state shards them."""
        dense, experts = self._sharing(kept)
        return of.over(self._tp, self._experts), of.over(self._tp * dense, self._experts * experts)

    def rests(self, kept: Kept, of: Weights, optimizer: float) -> tuple[Floats, Floats]:
        """Bytes of layers that rest, but for gradients, and those of these. `optimizer` is what it keeps of them."""
        own, sharded = self._numbers(of, kept)
        dense, experts = self._sharing(kept) if kept.state else (1.0, 1.0)
        states = optimizer / np.maximum(self._tp * dense, self._experts * experts)
        gradients = self.facts.widths.gradient * (sharded if self._scatters(kept) else own)
        return states + self.facts.widths.element * own * (kept.state != "zero3"), gradients

    def once(self, kept: Kept, of: Weights) -> Floats:
        """Bytes of a layer that are there on its way: what is gathered, and gradients before they are scattered."""
        if self.facts.by_matrices:
            return np.zeros_like(self._tp)
        (own, _), (element, gradient) = self._numbers(of, kept), self.facts.widths
        return own * (element * (kept.state == "zero3") + gradient * self._scatters(kept))

    def fits(self, kept: Kept) -> NDArray[np.bool_]:
        """Where what rests of the mean stage under a state has room."""
        facts = self.facts
        rest, gradients = self.rests(kept, facts.all, facts.optimizer)
        largest = np.max([self.once(kept, each) for each in set(facts.layers)], axis=0)
        found: NDArray[np.bool_] = (rest + gradients) / self.pp + largest <= facts.capacity
        if kept.inside:
            found &= (facts.node % self._tp == 0) & (facts.node >= 2 * self._tp) & (self.stage > facts.node)
        elif kept.state is not None:
            found &= (self._spread > 1) | (self.stage > self._experts)
        return found


def step_seconds(moved: Moved, forward: Numbers, backward: Numbers, stages: Numbers, micro_batches: Numbers) -> Floats:
    """What a step takes at least of which all layers compute so long for a micro-batch (see above)."""
    back = np.maximum(backward, moved.backward)
    paced = micro_batches * (np.maximum(forward, moved.forward) + back)
    found: Floats = (paced + np.maximum(0.0, moved.once - back) + moved.after) / stages
    return found
