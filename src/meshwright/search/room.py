"""What fits into a device beside the states of a stage: what `cost.memory` asks of a plan, before there is one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from meshwright.cost.activations import Activations
from meshwright.cost.layer_states import States
from meshwright.cost.memory import ACCEPTED, Instant, bare_memory, bucket_bytes
from meshwright.cost.placement import Placement
from meshwright.cost.stage_memory import gathered_ahead, most_together
from meshwright.search.frontier import Floats

_Bytes = TypeVar("_Bytes", float, Floats)


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

    def unlike(self, recomputed: float) -> float:
        """Of these two what is less, and lies apart (`Memory.unlike`)."""
        return min(recomputed, self.loss)


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


class _Line(NamedTuple):
    """The least capacity with which it is said to fit, as what is in use makes it: bytes, and so many for each byte."""

    around: float
    resting: float
    moving: float
    unlike: float

    def at(self, resting: _Bytes, moving: float, unlike: float) -> _Bytes:
        """Bytes that are needed."""
        return self.around + self.resting * resting + self.moving * moving + self.unlike * unlike

    def moves(self, capacity: float, resting: _Bytes, unlike: float) -> _Bytes:
        """Bytes that may come and go in so many."""
        return (capacity - self.at(resting, 0.0, unlike)) / self.moving


class Room:
    """A device of a placement's group, or so many bytes of it."""

    def __init__(self, placement: Placement, group: str, *, pipeline: bool, limit: float | None = None) -> None:
        plain = bare_memory(placement, group)
        self.capacity = plain.capacity if limit is None else min(plain.capacity, limit)
        self.ahead = gathered_ahead(placement)
        self._plain = replace(plain, communicators=plain.communicators + pipeline)
        self._begun = placement.kernels.keeps_gradients
        self._bucket = bucket_bytes(placement)
        self._lines = {overlapping: self._line(overlapping=overlapping) for overlapping in (False, True)}

    def _line(self, *, overlapping: bool) -> _Line:
        """`Memory.asked` is linear in what rests, comes and goes, and lies apart, as long as a backward is its peak."""
        much = self.capacity

        def needed(resting: float, moving: float, unlike: float) -> float:
            now = Instant("backward", {"parameters": resting, "activations": moving})
            instants = now, Instant("step", {"parameters": resting})
            asked = replace(self._plain, instants=instants, unlike=unlike, overlapping=overlapping).asked
            return asked.passed_with(ACCEPTED)

        some = needed(0.0, much, 0.0)
        more = needed(much, much, 0.0), needed(0.0, 2 * much, 0.0), needed(0.0, much, much)
        resting, moving, unlike = ((each - some) / much for each in more)
        return _Line(some - moving * much, resting, moving, unlike)

    def _needed(self, resting: float, widened: float, *, overlapping: bool) -> float:
        """The same by the end of a step."""
        return self._lines[overlapping].at(resting, widened + self._bucket, 0.0)

    def ends(self, resting: float, widened: float, *, overlapping: bool) -> bool:
        """Whether there is room for the end of a step."""
        return self._needed(resting, widened, overlapping=overlapping) <= self.capacity

    def moving_beside(self, resting: _Bytes, unlike: float, *, overlapping: bool) -> _Bytes:
        """The most bytes that may come and go beside so many that rest."""
        return self._lines[overlapping].moves(self.capacity, resting, unlike)

    @property
    def resting(self) -> float:
        """The most bytes that may rest where nothing comes and goes."""
        return (self.capacity - self._needed(0.0, 0.0, overlapping=False)) / self._lines[False].resting

    @property
    def moving(self) -> float:
        """Bytes that may rest in place of one that comes and goes, at least."""
        return min(line.moving for line in self._lines.values()) / self._lines[False].resting

    def most(self, held: Held, recomputed: float, in_flight: float, micro_batches: int) -> float:
        """The most bytes of activations that a stage can keep for each micro-batch in flight; less than none where it
        does not fit at all.

        Gradients are there from the end of the first backward on: with fewer micro-batches than the stage holds, when
        one less is in flight. Logits are those of one micro-batch: the last stage runs each backward at once.
        """
        passing, whole = held.window + held.passing(recomputed), held.resting + held.gradients
        overlapping, unlike = in_flight > 1, held.unlike(recomputed)
        if not self.ends(whole, held.widened, overlapping=overlapping):
            return -1.0
        passing += held.logits
        room = self.moving_beside(whole, unlike, overlapping=overlapping)
        if self._begun or micro_batches > in_flight:
            return (room - passing) / in_flight
        alone = (self.moving_beside(held.resting, unlike, overlapping=overlapping) - passing) / in_flight
        if in_flight > 1:
            alone = min(alone, (room - passing) / (in_flight - 1))
        return alone
