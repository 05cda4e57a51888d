"""What a rank's memory holds, as a peak over the instants of a step, item by item.

Counted are parameters, gradients, optimizer states, activations, gathered parameters, logits, and what one layer needs
on its way. What a framework's context, an allocator's rounding and communication buffers take comes on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.blocks import Block
from meshwright.cost.calibration import DeviceConstants
from meshwright.cost.compute import is_core, is_repeated, master_bytes
from meshwright.cost.footprint import Footprint, footprint
from meshwright.cost.kernels import KernelSet
from meshwright.cost.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order
from meshwright.cost.placement import Placement
from meshwright.cost.saved import looked_at
from meshwright.cost.shares import Share, elements, split_ways
from meshwright.cost.states import Parameters, sharding_of
from meshwright.cost.uses import Storage
from meshwright.cost.volumes import held_by, widths_of
from meshwright.model.operators import Attention, Linear, Loss
from meshwright.plan.spec import Recompute, Row, Save
from meshwright.recipe.spec import BYTES

Floats: TypeAlias = NDArray[np.float64]


ACCEPTED = 0.1
"""The probability of running out of memory up to which a plan is said to fit."""


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
    """One rank of a group over the instants of a step, beside what its device has."""

    group: str
    stages: tuple[int, ...]
    capacity: float
    """Bytes of the smallest device of the group."""
    instants: tuple[Instant, ...]
    reached: DeviceConstants = field(default_factory=DeviceConstants)
    """What the device needs around what is allocated."""
    over_time: Floats = field(default_factory=lambda: np.empty(0), compare=False)
    """Bytes during each action of the group's order."""

    @property
    def where(self) -> str:
        """Its stages in words."""
        numbers = ", ".join(str(stage) for stage in self.stages)
        return f"stage{'s' * (len(self.stages) > 1)} {numbers} on group {self.group}"

    @property
    def worst(self) -> Instant:
        """The instant that needs most; the latest of them."""
        return max(reversed(self.instants), key=lambda instant: instant.total)

    @property
    def peak(self) -> float:
        """Bytes at that instant."""
        return self.worst.total

    @property
    def footprint(self) -> Footprint:
        """What the device is asked for, as ranges."""
        return footprint(self.peak, self.reached)

    @property
    def fits(self) -> bool:
        """Whether the device has as much, but for a chance of `ACCEPTED`."""
        return self.out_of_memory <= ACCEPTED

    @property
    def out_of_memory(self) -> float:
        """The probability that the device has less."""
        return self.footprint.device.chance_above(self.capacity)

    def as_data(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "group": self.group,
            "stages": list(self.stages),
            "memory_peak_bytes": self.peak,
            "memory_bytes": self.capacity,
            "fits": self.fits,
            "out_of_memory": self.out_of_memory,
            "peak_at": self.worst.name,
            "footprint": {name: list(found) for name, found in self.footprint._asdict().items()},
            "memory": {each.name: {"total": each.total} | each.parts for each in self.instants},
        }


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
    scattered = sharding.scatters(placement.plan.execution.sync)
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
    weights: float = 0.0
    """What the gradients of the weights want, where they are taken later than that of the input (Qi 2023, section 2.1):
    each matrix's input, and the gradient of its output."""

    def plus(self, other: "Activations", times: int = 1) -> "Activations":
        """Both together, the other so many times."""
        return Activations(*(one + times * more for one, more in zip(self, other, strict=True)))


def layer_activations(placement: Placement, block: Block) -> Activations:
    """One layer of a block."""
    storage, total = placement.storage(block.group), Activations()
    for row, _, under in placement.row_shares(block):
        work = [share for share in under if not isinstance(share.operator, Loss)]
        all_of_it = sum(placement.kernels.use(share, storage).kept for share in work)
        rest = _recomputed(placement, block, row, work, storage)
        losses = [placement.kernels.use(share, storage) for share in under if isinstance(share.operator, Loss)]
        chunks = placement.recipe.loss.chunks
        total = total.plus(
            Activations(
                kept=0.0 if row.offload.activations else min(rest, all_of_it),
                whole=all_of_it,
                logits=sum(use.kept for use in losses) / chunks,
                passing=sum(use.passing for use in losses) / chunks,
                weights=sum(_for_weights(share, storage) for share in work),
            )
        )
    return total


def _for_weights(share: Share, storage: Storage) -> float:
    if not share.learns or not isinstance(share.operator, Linear):
        return 0.0
    read = share.work.positions * share.operator.inputs if share.fresh else 0.0
    return storage.element * (read + elements(share.operator, share.work))


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


class _Stage(NamedTuple):
    """What one stage of a group takes on a rank, all its layers together."""

    states: States
    activations: Activations
    """Of one micro-batch."""
    window: float
    """The most that a layer's gathered parameters and those gathered ahead of it take together."""
    passing: dict[str, float]
    """What one layer needs while it runs backward."""


def _stage(placement: Placement, stage: int) -> _Stage:
    blocks = placement.stage_blocks(stage)
    states = {block: layer_states(placement, block) for block in blocks}
    layers = [
        placement.once(("activations", block.likeness), partial(layer_activations, placement, block))
        for block in blocks
    ]
    total, kept = States(), Activations()
    for block, each in zip(blocks, layers, strict=True):
        total = total.plus(states[block], len(block.names))
        kept = kept.plus(each, len(block.names))
    together = _looked_at(placement, blocks)
    kept = kept.plus(Activations(kept=together, whole=together))
    layer = {
        "recomputed": max(each.whole - each.kept for each in layers),
        "reduced": max(each.reduced for each in states.values()),
    }
    # The loss is through with its backward before the first layer begins.
    loss, alone = {"loss": kept.passing}, sum(layer.values()) < kept.passing
    passing = dict.fromkeys(layer, 0.0) | loss if alone else layer | {"loss": 0.0}
    return _Stage(total, kept, _window(placement, states), passing)


def _looked_at(placement: Placement, blocks: Sequence[Block]) -> float:
    """What other layers put out that attention of a stage looks at (an encoder's output), which all keep together."""
    found = 0.0
    for stream, width in looked_at(block.stack for block in blocks).items():
        block = next(block for block in blocks if stream in looked_at([block.stack]))
        ways = split_ways(block.row, placement.group(block.group).mesh)
        scattered = ways.scattered if placement.kernels.gathers_again else 1
        numbers = placement.samples * placement.lengths[stream] * width
        found += placement.element * numbers / (ways.batch * ways.cp * ways.ulysses * scattered)
    return found


def group_memory(placement: Placement, group: str, order: Order) -> Memory:
    """A rank of a group that runs its actions in this order, stage by stage of its own."""
    stages = tuple(number for number, stage in enumerate(placement.plan.stages) if stage.on == group)
    own = [_stage(placement, stage) for stage in stages]
    states = States()
    for each in own:
        states = states.plus(each.states)
    resting = {"parameters": states.parameters, "optimizer": states.optimizer}
    alive = _Alive(order, stages, own, lasting=placement.kernels.keeps_gradients)
    return Memory(
        group=group,
        stages=stages,
        capacity=_capacity(placement, group),
        reached=_reached(placement, group),
        instants=(
            Instant("initialisation", resting),
            Instant("forward", resting | alive.worst(order.kind == FORWARD)),
            Instant("backward", resting | alive.worst(order.kind != FORWARD)),
            Instant("step", resting | {"gradients": states.gradients}),
        ),
        over_time=sum(resting.values()) + alive.total,
    )


def plan_memory(placement: Placement) -> tuple[Memory, ...]:
    """One rank of each group, in the order of the stages."""
    found = zip(placement.running, placement.orders, strict=True)
    return tuple(group_memory(placement, group, order) for group, order in found)


class _Alive:
    """What is there during each action beside what rests: an array for each part."""

    def __init__(self, order: Order, stages: Sequence[int], own: Sequence[_Stage], *, lasting: bool) -> None:
        place = np.searchsorted(stages, order.stage)
        backward = order.kind != FORWARD
        gradients = np.array([each.states.gradients for each in own])
        made = np.zeros((len(order), len(own)))
        made[np.arange(len(order)), place] = np.isin(order.kind, (BACKWARD, WEIGHT))
        begun = np.ones_like(made) if lasting else (np.cumsum(made, axis=0) - made) > 0
        self.parts = {
            "gathered": np.array([each.window for each in own])[place],
            "gradients": begun @ gradients,
            "activations": self._between(order, np.array([each.activations.kept for each in own])[place])
            + self._late(order, np.array([each.activations.weights for each in own])[place]),
            "logits": self._between(order, np.array([each.activations.logits for each in own])[place]),
        } | {name: np.array([each.passing[name] for each in own])[place] * backward for name in own[0].passing}
        self.total: Floats = sum(self.parts.values(), start=np.zeros(len(order)))

    @staticmethod
    def _between(order: Order, size: Floats) -> Floats:
        """From a forward to the end of the backward, or of its first half."""
        freed = size * np.isin(order.kind, (BACKWARD, INPUT))
        made: Floats = np.cumsum(size * (order.kind == FORWARD))
        return made - (np.cumsum(freed) - freed)

    @staticmethod
    def _late(order: Order, size: Floats) -> Floats:
        """From the end of a backward's first half to that of its second."""
        begun, freed = size * (order.kind == INPUT), size * (order.kind == WEIGHT)
        held: Floats = np.cumsum(begun) - begun - (np.cumsum(freed) - freed)
        return held

    def worst(self, where: NDArray[np.bool_]) -> dict[str, float]:
        """The parts at the fullest of these actions; the latest of them. Gradients come in a backward as activations
        go, so the first backward of a stage has none yet.
        """
        places = np.flatnonzero(where)
        if not len(places):
            return dict.fromkeys(self.parts, 0.0)
        at = places[len(places) - 1 - int(np.argmax(self.total[places][::-1]))]
        return {name: float(values[at]) for name, values in self.parts.items()}


def _window(placement: Placement, states: dict[Block, States]) -> float:
    """The most that a layer and those gathered ahead of it take together."""
    names = [placed.layer for placed in placement.plan.placed if placed.stage == next(iter(states)).stage]
    sizes = [states[placement.block_of[name]].gathered for name in names]
    wide = 1 + placement.plan.execution.prefetch
    return max(sum(sizes[first : first + wide]) for first in range(len(sizes)))


def _capacity(placement: Placement, group: str) -> float:
    devices = placement.inputs.cluster.devices
    return min(devices[pool.device].memory for pool, _ in placement.pools(group))


def _reached(placement: Placement, group: str) -> DeviceConstants:
    """Of the devices with the least memory; of equals, that which needs most around it."""
    devices = placement.inputs.cluster.devices
    names = [pool.device for pool, _ in placement.pools(group)]
    least = min(devices[name].memory for name in names)
    kinds = [placement.calibration.device(name) for name in names if devices[name].memory == least]
    return max(kinds, key=lambda kind: kind.context[1])
