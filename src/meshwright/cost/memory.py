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
from meshwright.cost.layer_states import States, layer_states
from meshwright.cost.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order
from meshwright.cost.placement import Placement
from meshwright.cost.saved import looked_at
from meshwright.cost.ways import split_ways

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
    window = most_together(
        [states[block].gathered for block in placement.stage_layers[stage]], placement.plan.execution.prefetch
    )
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


def most_together(sizes: Sequence[float], prefetch: int) -> float:
    """The most that a layer and so many gathered ahead of it take together.

    >>> most_together([1.0, 2.0, 3.0, 1.0], prefetch=1)
    5.0
    """
    wide = 1 + prefetch
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
