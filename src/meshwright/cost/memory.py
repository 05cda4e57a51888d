"""What a rank's memory holds, as a peak over the instants of a step, item by item.

Counted are parameters, gradients, optimizer states, activations, gathered parameters, logits, and what one layer needs
on its way. What a framework's context, an allocator's rounding and communication buffers take comes on top.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.calibration import DeviceConstants
from meshwright.cost.footprint import Footprint, Range, Taken, footprint
from meshwright.cost.kernels import KernelSet
from meshwright.cost.layer_states import States
from meshwright.cost.placement import Placement
from meshwright.cost.stage_memory import StageBytes, stage_bytes
from meshwright.cost.volumes import widths_of
from meshwright.plan.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order

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
    unlike: float = 0.0
    """Bytes of tensors of another time within a micro-batch that fit into no gap of the peak's: those of a layer's
    backward where the peak is the loss's, or the other way round."""
    expandable: bool = False
    """Whether what is free serves tensors of any size (`execution.expandable_segments`)."""
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
        taken = Taken(worst.total, resting, communicators=self.communicators)
        if not self.expandable:
            freed = 0.0 if worst is step else step.parts.get("widened", 0.0)
            pinned = 0.0 if worst is step else self.unlike
            taken = taken._replace(pinned=pinned, freed=freed, overlapping=self.overlapping)
        return footprint(taken, self.reached)

    @property
    def asked(self) -> Range:
        """Bytes of the device that there must be."""
        return self.footprint.needed

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


def bucket_bytes(placement: Placement) -> float:
    """The buffer that gradients are reduced from at the end of a step."""
    return placement.kernels.bucket * widths_of(placement).gradient


def group_memory(placement: Placement, group: str, order: Order) -> Memory:
    """A rank of a group that runs its actions in this order, stage by stage of its own."""
    found = placement.once(("memory", group, order), lambda: _group_memory(placement, group, order))
    return replace(found, reached=_reached(placement, group))


def bare_memory(placement: Placement, group: str) -> Memory:
    """The same before anything is in it."""
    return Memory(
        group=group,
        stages=(),
        capacity=_capacity(placement, group),
        instants=(),
        reached=_reached(placement, group),
        communicators=_communicators(placement, group),
        expandable=placement.plan.execution.expandable_segments,
    )


def _group_memory(placement: Placement, group: str, order: Order) -> Memory:
    """What of it no calibration changes."""
    stages = tuple(number for number, stage in enumerate(placement.plan.stages) if stage.on == group)
    own = [stage_bytes(placement, stage) for stage in stages]
    states = States()
    for each in own:
        states = states.plus(each.states)
    resting = {"parameters": states.parameters, "optimizer": states.optimizer}
    last = {"gradients": states.gradients, "widened": states.widened + bucket_bytes(placement)}
    alive = _Alive(order, stages, own, placement.kernels)
    return replace(
        bare_memory(placement, group),
        stages=stages,
        instants=(
            Instant("initialisation", resting),
            Instant("forward", resting | alive.worst(order.kind == FORWARD)),
            Instant("backward", resting | alive.worst(order.kind != FORWARD)),
            Instant("step", resting | last),
        ),
        unlike=max(each.unlike for each in own),
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

    >>> from meshwright.plan.orders import orders
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

    def __init__(self, order: Order, stages: Sequence[int], own: Sequence[StageBytes], kernels: KernelSet) -> None:
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
