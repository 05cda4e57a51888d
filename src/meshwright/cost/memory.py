"""What a rank's memory holds, as a peak over the instants of a step, item by item.

Counted are parameters, gradients, optimizer states, activations, gathered parameters, logits, and what one layer needs
on its way. What a framework's context, an allocator's rounding and communication buffers take comes on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from meshwright.cost.blocks import Block
from meshwright.cost.compute import is_core, is_repeated, master_bytes
from meshwright.cost.kernels import KernelSet
from meshwright.cost.placement import Placement
from meshwright.cost.schedule import Action, InFlight, in_flight
from meshwright.cost.shares import Share, elements, split_ways
from meshwright.cost.states import Parameters, sharding_of
from meshwright.cost.uses import Storage
from meshwright.cost.volumes import held_by, widths_of
from meshwright.model.operators import Attention, Loss
from meshwright.plan.spec import Recompute, Row, Save
from meshwright.recipe.spec import BYTES


@dataclass(frozen=True)
class Instant:
    """The bytes that are in use at one time of a step, by what they are for."""

    name: str
    """initialisation, forward, backward, step"""
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Memory:
    """One rank of a stage over the instants of a step, beside what its device has."""

    stage: int
    group: str
    capacity: float
    """Bytes of the smallest device of the group."""
    instants: tuple[Instant, ...]

    @property
    def worst(self) -> Instant:
        """The instant that needs most; the latest of them."""
        return max(reversed(self.instants), key=lambda instant: instant.total)

    @property
    def peak(self) -> float:
        """Bytes at that instant."""
        return self.worst.total

    @property
    def fits(self) -> bool:
        """Whether the device has as much."""
        return self.peak <= self.capacity


class States(NamedTuple):
    """Bytes of one layer's states on one rank."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0
    """The parameters whole, where a state or offload keeps them elsewhere."""
    reduced: float = 0.0
    """The gradients whole, before they are scattered after a micro-batch."""

    def plus(self, other: "States", times: int = 1) -> "States":
        """Both together, the other so many times."""
        return States(*(one + times * more for one, more in zip(self, other, strict=True)))


def layer_states(placement: Placement, block: Block) -> States:
    """One layer of a block. With bf16 parameters and gradients, fp32 master copy and Adam's two fp32 moments these are
    2 + 2 + 12 bytes a parameter (Rajbhandari 2020, section 3.1); the default recipe adds gradients up in fp32, which
    makes 2 + 4 + 12.
    """
    total = States()
    for row, held in held_by(placement, block):
        total = total.plus(_row_states(placement, block, placement.state_row(block, row), held))
    return total


def _row_states(placement: Placement, block: Block, row: Row, held: Parameters) -> States:
    """Where the optimizer is on the host, so are gradients that are scattered after each micro-batch (Ren 2021)."""
    recipe, widths = placement.recipe, widths_of(placement)
    sharding = sharding_of(row, placement.group(block.group).mesh)
    scattered = placement.plan.execution.sync == "each" and sharding.state in ("zero2", "zero3")
    kept = recipe.optimizer.moments * BYTES[recipe.optimizer.state] + master_bytes(recipe)
    whole, gradients = widths.element * held.all, widths.gradient * held.learning
    away = sharding.state == "zero3" or row.offload.parameters is not None
    return States(
        parameters=0.0 if row.offload.parameters else whole / sharding.kept("zero3"),
        gradients=0.0 if scattered and row.offload.optimizer else gradients / (sharding.ways if scattered else 1),
        optimizer=0.0 if row.offload.optimizer else kept * held.learning / sharding.ways,
        gathered=whole if away else 0.0,
        reduced=gradients if scattered else 0.0,
    )


class Activations(NamedTuple):
    """Bytes that one layer keeps for one micro-batch on one rank."""

    kept: float = 0.0
    """From forward to backward."""
    whole: float = 0.0
    """What backward needs of the layer when it is its turn: the same without recompute or offload."""
    logits: float = 0.0
    passing: float = 0.0
    """What the loss needs besides while it runs backward."""


def layer_activations(placement: Placement, block: Block) -> Activations:
    """One layer of a block."""
    storage, kept, whole, logits, passing = placement.storage(block.group), 0.0, 0.0, 0.0, 0.0
    shares = dict(zip((part.name for part in block.stack.parts), placement.shares(block), strict=True))
    for row, parts in block.rows():
        under = [share for part in parts for share in shares[part.name]]
        work = [share for share in under if not isinstance(share.operator, Loss)]
        all_of_it = sum(placement.kernels.use(share, storage).kept for share in work)
        rest = _recomputed(placement, block, row, work, storage)
        kept += 0.0 if row.offload.activations else min(rest, all_of_it)
        whole += all_of_it
        for share in (share for share in under if isinstance(share.operator, Loss)):
            use = placement.kernels.use(share, storage)
            logits += use.kept / placement.recipe.loss.chunks
            passing += use.passing / placement.recipe.loss.chunks
    return Activations(kept, whole, logits, passing)


def _recomputed(placement: Placement, block: Block, row: Row, shares: Sequence[Share], storage: Storage) -> float:
    """What is kept under recompute: `selective` leaves out the core attention's own (Korthikanti 2022, section 5);
    `full` keeps the layer's input alone; a list keeps that and what these operators put out.
    """
    recompute, kernels = row.recompute, placement.kernels
    if recompute == "none":
        return sum(kernels.use(share, storage).kept for share in shares)
    if recompute == "selective":
        uses = [kernels.use(share, storage) for share in shares]
        return sum(use.kept - use.core for use in uses)
    saved = sum(_saved(share, recompute, kernels, storage) for share in shares)
    return saved + _input_bytes(placement, block, row)


def _saved(share: Share, recompute: Recompute, kernels: KernelSet, storage: Storage) -> float:
    """What a list of saved outputs keeps of one operator."""
    if not isinstance(recompute, Save):
        return 0.0
    output = storage.element * elements(share.operator, share.work)
    if isinstance(share.operator, Attention) and "attention" in recompute.save:
        return output + kernels.use(share, storage).core
    if is_core(share):
        return 0.0
    saved = 0.0 if is_repeated(share, recompute) else output
    return saved + (output if share.leaves and "collective" in recompute.save else 0.0)


def _input_bytes(placement: Placement, block: Block, row: Row) -> float:
    ways = split_ways(row, placement.group(block.group).mesh)
    width = placement.input_width(block) if row is block.row else block.stack.output
    numbers = placement.samples * placement.lengths[block.stack.stream] * width
    return placement.element * numbers / (ways.batch * ways.cp * ways.ulysses * ways.scattered)


def stage_memory(placement: Placement, stage: int, order: Sequence[Action]) -> Memory:
    """A rank of a stage that runs its actions in this order."""
    blocks = placement.stage_blocks(stage)
    states = [layer_states(placement, block) for block in blocks]
    layers = [
        placement.once(("activations", block.likeness), partial(layer_activations, placement, block))
        for block in blocks
    ]
    total = States()
    for block, each in zip(blocks, states, strict=True):
        total = total.plus(each, len(block.names))
    resting = {"parameters": total.parameters, "optimizer": total.optimizer}
    gradients = {"gradients": total.gradients}
    alive = _Alive(
        activations=sum(len(block.names) * each.kept for block, each in zip(blocks, layers, strict=True)),
        logits=sum(each.logits for each in layers),
        gathered={"gathered": _window(placement, dict(zip(blocks, states, strict=True)))},
        gradients=gradients,
        lasting=placement.kernels.keeps_gradients,
    )
    passing = {
        "recomputed": max(each.whole - each.kept for each in layers),
        "reduced": max(each.reduced for each in states),
        "loss": sum(each.passing for each in layers),
    }
    group = placement.plan.stages[stage].on
    return Memory(
        stage=stage,
        group=group,
        capacity=_capacity(placement, group),
        instants=(
            Instant("initialisation", resting),
            Instant("forward", resting | alive.worst(in_flight(order, "forward"))),
            Instant("backward", resting | alive.worst(in_flight(order, "backward")) | passing),
            Instant("step", resting | gradients),
        ),
    )


class _Alive(NamedTuple):
    """What is there between forward and backward: bytes of activations and logits a micro-batch, and the rest."""

    activations: float
    logits: float
    gathered: dict[str, float]
    gradients: dict[str, float]
    lasting: bool
    """True where gradients are there from the start."""

    def worst(self, micro_batches: InFlight) -> dict[str, float]:
        """The worse of: before any gradients are there, and after. In a backward they come as activations go, so one
        micro-batch never holds all of both.
        """
        early = self._with(micro_batches.early, self.gradients if self.lasting else {})
        late = self._with(micro_batches.late, self.gradients) if micro_batches.late else early
        return max(late, early, key=lambda parts: sum(parts.values()))

    def _with(self, count: int, gradients: dict[str, float]) -> dict[str, float]:
        return self.gathered | gradients | {"activations": count * self.activations, "logits": count * self.logits}


def _window(placement: Placement, states: dict[Block, States]) -> float:
    """The most that a layer and those gathered ahead of it take together."""
    names = [placed.layer for placed in placement.plan.placed if placed.stage == next(iter(states)).stage]
    sizes = [states[placement.block_of[name]].gathered for name in names]
    wide = 1 + placement.plan.execution.prefetch
    return max(sum(sizes[first : first + wide]) for first in range(len(sizes)))


def _capacity(placement: Placement, group: str) -> float:
    devices = placement.inputs.cluster.devices
    return min(devices[pool.device].memory for pool, _ in placement.pools(group))
