"""What a rank's memory holds, as a peak over the instants of a step, item by item.

Counted are parameters, gradients, optimizer states, activations, gathered parameters, logits, and what one layer needs
on its way. What a framework's context, an allocator's rounding and communication buffers take comes on top.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.activations import Activations, layer_activations
from meshwright.cost.blocks import Block
from meshwright.cost.calibration import DeviceConstants
from meshwright.cost.footprint import Footprint, Range, Taken, footprint
from meshwright.cost.kernels import KernelSet
from meshwright.cost.optimizers import master_bytes, state_bytes
from meshwright.cost.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order
from meshwright.cost.placement import Placement
from meshwright.cost.saved import looked_at
from meshwright.cost.shares import split_ways
from meshwright.cost.slices import stepped_by
from meshwright.cost.states import Parameters, sharding_of
from meshwright.cost.volumes import held_by, widths_of
from meshwright.plan.spec import Row

Floats: TypeAlias = NDArray[np.float64]


ACCEPTED = 0.1
"""The probability of running out of memory up to which a plan is said to fit."""
RESTING = ("parameters", "optimizer", "gradients")
"""Parts that lie where they were put, step after step; others come and go, and leave gaps (`cost.footprint`)."""


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
class Filled(ABC):
    """A memory over the instants of a step, beside what it has room for."""

    stages: tuple[int, ...]
    """Whose ranks fill it."""
    capacity: float
    instants: tuple[Instant, ...]

    @property
    @abstractmethod
    def where(self) -> str:
        """Which it is, in words."""

    @property
    @abstractmethod
    def asked(self) -> Range:
        """The bytes that are wanted of it at the peak, with all that comes on top."""

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
        """Whether there is as much, but for a chance of `ACCEPTED`."""
        return self.out_of_memory <= ACCEPTED

    @property
    def out_of_memory(self) -> float:
        """The probability that there is less."""
        return self.asked.chance_above(self.capacity)

    @property
    def stage_names(self) -> str:
        """Its stages in words."""
        return f"stage{'s' * (len(self.stages) > 1)} {', '.join(map(str, self.stages))}"


@dataclass(frozen=True)
class Memory(Filled):
    """One rank of a group; `capacity` is that of the smallest device of the group."""

    group: str
    reached: DeviceConstants = field(default_factory=DeviceConstants)
    """What the device needs around what is allocated."""
    communicators: int = 0
    """Groups of ranks that a rank talks to: one for each axis, and its neighbours in the pipeline."""
    overlapping: bool = False
    """Whether several micro-batches are in flight at once."""
    over_time: Floats = field(default_factory=lambda: np.empty(0), compare=False)
    """Bytes during each action of the group's order."""

    @property
    def where(self) -> str:
        """The device that needs most, in words."""
        return f"the fullest device ({self.stage_names} on group {self.group}, at {self.worst.name})"

    @property
    def footprint(self) -> Footprint:
        """What the device is asked for, as ranges."""
        worst, step = self.worst, self.instants[-1]
        resting = sum(worst.parts.get(name, 0.0) for name in RESTING)
        apart = 0.0 if worst is step else step.parts.get("widened", 0.0)
        return footprint(Taken(worst.total, resting, apart, self.communicators, self.overlapping), self.reached)

    @property
    def asked(self) -> Range:
        """Bytes of the device."""
        return self.footprint.device

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
    widened: float = 0.0
    """The gradients once more, as the optimizer steps with them, where they add up in a narrower dtype than the master
    copy has (Megatron-LM's main gradients, DeepSpeed's fp32 partition)."""

    def plus(self, other: "States", times: int = 1) -> "States":
        """Both together, the other so many times."""
        return States(*(one + times * more for one, more in zip(self, other, strict=True)))


def layer_states(placement: Placement, block: Block) -> States:
    """One layer of a block. With bf16 parameters and gradients, fp32 master copy and Adam's two fp32 moments these are
    2 + 2 + 12 bytes a parameter (Rajbhandari 2020, section 3.1); the default recipe adds gradients up in fp32, which
    makes 2 + 4 + 12. Of two ranks under zero1 each has half of the last.

    >>> import meshwright as mw
    >>> from meshwright.plan.rules import Inputs
    >>> given = mw.model("gpt2"), mw.cluster("2xh100"), mw.recipe(global_batch=4, sequence=8)
    >>> placement = Placement(Inputs(mw.uniform_plan(*given, zero=1), *given))
    >>> block = placement.block_of["decoder.0"]
    >>> [size / block.stack.parameters for size in layer_states(placement, block)[:3]]
    [2.0, 4.0, 6.0]
    """
    return _layer_states(placement, block)[0]


def states_away(placement: Placement, block: Block) -> States:
    """What the host keeps of one layer of a block for one rank."""
    return _layer_states(placement, block)[1]


def _layer_states(placement: Placement, block: Block) -> tuple[States, States]:
    """What the device keeps and what the host keeps."""
    return placement.once(("states", placement.sharded_alike(block)), lambda: _count_states(placement, block))


def _count_states(placement: Placement, block: Block) -> tuple[States, States]:
    here, away = States(), States()
    for (row, held), stepped in zip(held_by(placement, block), stepped_by(placement, block), strict=True):
        kept = state_bytes(placement.recipe, stepped.own, stepped.ways)
        on_device, on_host = _row_states(placement, block, placement.state_row(block, row), held, kept)
        here, away = here.plus(on_device), away.plus(on_host)
    return here, away


def _row_states(
    placement: Placement, block: Block, row: Row, held: Parameters, optimizer: float
) -> tuple[States, States]:
    """What the device keeps and what the host keeps, with so many bytes of optimizer states. Where the optimizer is on
    the host, so are gradients that are scattered after each micro-batch (Ren 2021), and others come to it at the end
    of the step. Frozen weights rest as they are multiplied, where that is narrow (NVIDIA's LoRA of MLPerf, whose 70B
    take 82 GB with all that they keep, `validation/data/mlperf.csv`).
    """
    widths, sharding = widths_of(placement), sharding_of(row, placement.group(block.group).mesh)
    scattered = sharding.scatters(placement.plan.execution.sync)
    whole, gradients = widths.element * held.all, widths.gradient * held.learning
    if placement.kernels.has_buckets and (sharding.shard or sharding.replicas):
        gradients += widths.element * held.learning
    wide = master_bytes(placement.recipe)
    stepped, stored = row.offload.optimizer is not None, row.offload.parameters is not None  # on the host
    masters = sharding.state == "zero3" and placement.kernels.shards_masters and wide > 0 and not (stepped or stored)
    frozen = held.frozen * (placement.storage(block.group).narrow or widths.element)
    parameters = (frozen + (0.0 if masters else widths.element * held.learning)) / sharding.kept("zero3")
    here = States(
        parameters=0.0 if stored else parameters,
        gradients=0.0 if scattered and stepped else gradients / (sharding.ways if scattered else 1),
        optimizer=0.0 if stepped else optimizer,
        gathered=whole if stored or sharding.state == "zero3" else 0.0,
        reduced=gradients if scattered else 0.0,
        widened=wide * held.learning / sharding.ways if wide > widths.gradient and not stepped else 0.0,
    )
    away = States(
        parameters=parameters if stored else 0.0,
        gradients=gradients / sharding.ways if stepped else 0.0,
        optimizer=optimizer if stepped else 0.0,
    )
    return here, away


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
    """What one stage takes; equal ones are counted once."""
    key = ("stage", tuple(map(placement.sharded_alike, placement.stage_layers[stage])))
    return placement.once(key, lambda: _count_stage(placement, stage))


def _count_stage(placement: Placement, stage: int) -> _Stage:
    blocks = placement.stage_blocks(stage)
    states = {block: layer_states(placement, block) for block in blocks}
    layers = [layer_activations(placement, block) for block in blocks]
    total, kept = States(), Activations()
    for block, each in zip(blocks, layers, strict=True):
        total = total.plus(states[block], len(block.names))
        kept = kept.plus(each, len(block.names))
    together = _looked_at(placement, blocks)
    kept = kept.plus(Activations(kept=together, whole=together, weights=together * placement.kernels.retains))
    layer = {
        "recomputed": max(each.whole - each.kept for each in layers),
        "reduced": max(each.reduced for each in states.values()),
    }
    # The loss is through with its backward before the first layer begins.
    loss, alone = {"loss": kept.passing}, sum(layer.values()) < kept.passing
    passing = dict.fromkeys(layer, 0.0) | loss if alone else layer | {"loss": 0.0}
    window = _window(placement, [states[block].gathered for block in placement.stage_layers[stage]])
    return _Stage(total, kept, window, passing)


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
    found = placement.once(("memory", group, order), lambda: _group_memory(placement, group, order))
    return replace(found, reached=_reached(placement, group))


def _group_memory(placement: Placement, group: str, order: Order) -> Memory:
    """What of it no calibration changes."""
    stages = tuple(number for number, stage in enumerate(placement.plan.stages) if stage.on == group)
    own = [_stage(placement, stage) for stage in stages]
    states = States()
    for each in own:
        states = states.plus(each.states)
    resting = {"parameters": states.parameters, "optimizer": states.optimizer}
    alive = _Alive(order, stages, own, placement.kernels)
    return Memory(
        group=group,
        stages=stages,
        capacity=_capacity(placement, group),
        instants=(
            Instant("initialisation", resting),
            Instant("forward", resting | alive.worst(order.kind == FORWARD)),
            Instant("backward", resting | alive.worst(order.kind != FORWARD)),
            Instant("step", resting | {"gradients": states.gradients, "widened": states.widened}),
        ),
        communicators=_communicators(placement, group),
        overlapping=bool(in_flight(order, np.ones(len(order))).max() > len(stages)),
        over_time=sum(resting.values()) + alive.total,
    )


def plan_memory(placement: Placement) -> tuple[Memory, ...]:
    """One rank of each group, in the order of the stages."""
    found = zip(placement.running, placement.orders, strict=True)
    return tuple(group_memory(placement, group, order) for group, order in found)


def in_flight(order: Order, size: Floats, *, until: int = INPUT) -> Floats:
    """What is there during each action of what each action's forward makes, up to the end of its backward, or of the
    half `until` where backwards come in halves.

    >>> from meshwright.cost.orders import orders
    >>> order = orders("zb-h1", (0, 1), 2)[1]
    >>> print(order)
    1F0 1I0 1F1 1I1 1W0 1W1
    >>> in_flight(order, np.full(6, 10.0)).tolist()
    [10.0, 10.0, 10.0, 10.0, 0.0, 0.0]
    >>> in_flight(order, np.full(6, 10.0), until=WEIGHT).tolist()
    [10.0, 10.0, 20.0, 20.0, 20.0, 10.0]
    """
    freed = size * order.does(BACKWARD, until)
    made: Floats = np.cumsum(size * (order.kind == FORWARD))
    return made - (np.cumsum(freed) - freed)


class _Alive:
    """What is there during each action beside what rests: an array for each part."""

    def __init__(self, order: Order, stages: Sequence[int], own: Sequence[_Stage], kernels: KernelSet) -> None:
        place = np.searchsorted(stages, order.stage)
        gradients = np.array([each.states.gradients for each in own])
        made = np.zeros((len(order), len(own)))
        made[np.arange(len(order)), place] = order.does(BACKWARD, WEIGHT)
        begun = np.ones_like(made) if kernels.keeps_gradients else (np.cumsum(made, axis=0) - made) > 0
        self.parts = {
            "gathered": np.array([each.window for each in own])[place],
            "gradients": begun @ gradients,
            "activations": in_flight(order, np.array([each.activations.kept for each in own])[place])
            + self._late(order, np.array([each.activations.weights for each in own])[place]),
            "logits": in_flight(order, np.array([each.activations.logits for each in own])[place]),
        }
        # A second half uses what the first has put away, unless its graph was retained, whose layers run once more.
        first, last = order.does(BACKWARD, INPUT), order.does(BACKWARD, WEIGHT)
        during = {"recomputed": first | (last & kernels.retains), "reduced": last, "loss": first}
        for name, when in during.items():
            self.parts[name] = np.array([each.passing[name] for each in own])[place] * when
        self.total: Floats = sum(self.parts.values(), start=np.zeros(len(order)))

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


def _window(placement: Placement, sizes: Sequence[float]) -> float:
    """The most that a layer and those gathered ahead of it take together."""
    wide = 1 + placement.plan.execution.prefetch
    return max(sum(sizes[first : first + wide]) for first in range(len(sizes)))


def _communicators(placement: Placement, group: str) -> int:
    mesh = placement.group(group).mesh
    return sum(size > 1 for size in mesh.values()) + (len(placement.running) > 1)


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
