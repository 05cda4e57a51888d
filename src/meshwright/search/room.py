"""What fits into a device beside the states of a stage: what `cost.memory` asks of a plan, before there is one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from meshwright.cost.activations import Activations
from meshwright.cost.layer_states import States
from meshwright.cost.memory import ACCEPTED, Instant, group_memory, most_together
from meshwright.cost.placement import Placement


class Held(NamedTuple):
    """What one stage holds whatever its layers compute again: bytes."""

    resting: float
    """Parameters and optimizer states."""
    gradients: float
    widened: float
    """By the end of a step, beside them."""
    window: float
    """Gathered parameters."""
    reduced: float
    logits: float
    loss: float
    """What the loss needs while it runs backward."""

    def passing(self, recomputed: float) -> float:
        """What is there during a backward only: a layer's, or before it the loss's."""
        return max(recomputed + self.reduced, self.loss)


def held_by_stage(layers: Sequence[tuple[States, Activations, int]], prefetch: int) -> Held:
    """Of the layers of a stage, in order, so many of each kind."""
    gathered = [states.gathered for states, _, count in layers for _ in range(min(count, 1 + prefetch))]

    def total(of: Callable[[States], float]) -> float:
        return sum(count * of(states) for states, _, count in layers)

    return Held(
        resting=total(lambda each: each.parameters + each.optimizer),
        gradients=total(lambda each: each.gradients),
        widened=total(lambda each: each.widened),
        window=most_together(gathered, prefetch),
        reduced=max(states.reduced for states, _, _ in layers),
        logits=sum(count * kept.logits for _, kept, count in layers),
        loss=sum(count * kept.passing for _, kept, count in layers),
    )


class Room:
    """A device of a placement's group, or so many bytes of it."""

    def __init__(self, placement: Placement, group: str, *, pipeline: bool, limit: float | None = None) -> None:
        order = placement.orders[placement.running.index(group)]
        plain = group_memory(placement, group, order)
        self.capacity = plain.capacity if limit is None else min(plain.capacity, limit)
        self._plain = replace(plain, communicators=plain.communicators + pipeline)
        self._begun = placement.kernels.keeps_gradients
        self._left: dict[tuple[float, float, float, bool], float] = {}

    def _needed(self, resting: float, widened: float, moving: float, *, overlapping: bool) -> float:
        """The least capacity with which it is said to fit that so much rests and so much comes and goes."""
        now = Instant("backward", {"parameters": resting, "activations": moving})
        step = Instant("step", {"parameters": resting, "widened": widened})
        return replace(self._plain, instants=(now, step), overlapping=overlapping).asked.passed_with(ACCEPTED)

    def left(self, resting: float, widened: float, *, overlapping: bool) -> float:
        """The most bytes that may come and go beside so many that stay: what is needed is linear in them, from where
        they are more than what comes by the end of the step.
        """
        key = resting, widened, self.capacity, overlapping
        if key not in self._left:
            some, more = (
                self._needed(resting, widened, widened + share * self.capacity, overlapping=overlapping)
                for share in (1, 2)
            )
            self._left[key] = widened + self.capacity + (self.capacity - some) * self.capacity / (more - some)
        return self._left[key]

    def most(self, held: Held, recomputed: float, in_flight: float, micro_batches: int) -> float:
        """The most bytes of activations that a stage can keep for each micro-batch in flight; less than none where it
        does not fit at all.

        Gradients are there from the end of the first backward on: with fewer micro-batches than the stage holds, when
        one less is in flight.
        """
        passing, whole = held.window + held.passing(recomputed), held.resting + held.gradients
        overlapping = in_flight > 1
        if self._needed(whole, held.widened, 0.0, overlapping=overlapping) > self.capacity:
            return -1.0
        room = self.left(whole, held.widened, overlapping=overlapping)
        if self._begun or micro_batches > in_flight:
            return (room - passing) / in_flight - held.logits
        alone = (self.left(held.resting, held.widened, overlapping=overlapping) - passing) / in_flight
        if in_flight > 1:
            alone = min(alone, (room - passing) / (in_flight - 1))
        return alone - held.logits
