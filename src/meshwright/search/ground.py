"""What the outer choices of a search take at least, before any is costed state by state and stage by stage.

First all shapes at once, by FLOPs and links (`search.outline`); then one by one by what layers compute on one replica;
at last by whether the layers that are most in number fit into the stages' memory and time, in any parts
(`search.fill`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshwright.cost.calibration import Calibration
from meshwright.model.spec import Layer
from meshwright.plan.orders import round_size
from meshwright.plan.stage_cut import even_counts, numbered_layers
from meshwright.plan.words import Schedule
from meshwright.search.benches import Benches
from meshwright.search.bounds import Floor, alone, one_f_one_b_bound, whole_work
from meshwright.search.dense import Cuts, Dense, cuts_of
from meshwright.search.frontier import Bools, Floats, Integers
from meshwright.search.main_room import Flight, MainRoom
from meshwright.search.outline import Facts, Kept, Moved, Numbers, Outline, step_seconds
from meshwright.search.problem import Problem
from meshwright.search.space import V_SHAPED, Shape, shapes
from meshwright.search.stages import in_flight, most_in_flight

_PASSING: tuple[Schedule, ...] = ("1f1b", "interleaved")
"""Schedules under which a micro-batch passes all stages there and all the way back."""
_ROUNDED = 1 - 1e-9
_TINY = 1e-30
Places: TypeAlias = Integers | slice


class Pace(NamedTuple):
    """What a micro-batch takes at least: of a layer of those that are most in number, and of all layers once."""

    forward: float
    backward: tuple[float, ...]
    """Seconds under each recompute."""
    once: float
    numbered: float
    """Of the numbered layer that takes least, both ways."""
    head: float
    """Of what stands after the numbered layers, both ways."""
    finish: float = 0.0
    """What a layer adds to the end of a step."""


class Ground:
    """The shapes of a problem, with their bounds: of all `states` at once, in their order."""

    def __init__(self, problem: Problem, calibration: Calibration) -> None:
        self.problem = problem
        self.shapes = list(shapes(problem, problem.devices))
        self._place = {shape: place for place, shape in enumerate(self.shapes)}
        bench, cut = alone(problem, calibration), any(shape.tp > 1 for shape in self.shapes)
        self._whole = whole_work(bench)
        self._facts = Facts(bench, alone(problem, calibration, tp=2) if cut else None)
        self._outline = Outline(self._facts, self.shapes)
        outline, facts, wishes = self._outline, self._facts, problem.wishes
        self.states = [Kept(state) for state in wishes.states]
        self.states += [Kept(state, inside=True) for state in wishes.states if state and wishes.replicates]
        self._fits = self._by_state(outline.fits)[0]
        self._moved = Moved(*self._by_state(outline.moved))
        self._of_main = Moved(*self._by_state(lambda state: outline.moved_of(state, facts.of_main)))
        self.benches = Benches(problem, calibration)
        self._room = MainRoom(outline, self._by_state, self.benches)
        self._share = 1 / (outline.micro_batches * outline.stage)
        """What the ranks of a stage compute of a micro-batch, of the whole batch on one device."""
        self._passes = wishes.schedule in (None, *_PASSING)
        self._dense = self._without_experts(problem, calibration)
        self._closest, self._costed = np.zeros(len(self.shapes)), set[Cuts]()
        self._alike = _alike(self.shapes) if self._dense else {}
        self._floors: dict[Shape, Floor] = {}
        self._under: dict[tuple[Shape, Schedule], Floats] = {}
        self._cuts: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        self._numbered = len(numbered_layers(problem.model)) if any(each.pp > 1 for each in self.shapes) else 0

    def _without_experts(self, problem: Problem, calibration: Calibration) -> Dense | None:
        """None where there are no experts, or their computing may hide what other parts exchange."""
        some, overlap = any(part.experts for part in self._facts.main.stack.parts), self._facts.execution.overlap
        apart = some and {"tensor", "weights", "experts"}.isdisjoint(overlap)
        return Dense(problem, calibration, self._facts.main) if apart else None

    def _by_state(self, of: Callable[[Kept], Any]) -> Floats:
        """What there is of each state: [numbers, states, shapes]."""
        every = np.array([np.atleast_2d(of(state)) for state in self.states or [Kept(None)]])
        found: Floats = every[: len(self.states)].swapaxes(0, 1)
        return found

    def bounds(self) -> Floats:
        """Seconds that each shape takes at least; infinity where no state fits."""
        work, (there, back) = self._whole.total, self._outline.exchanged()
        return self._stepped(self._share * work.forward + there, self._share * work.backward + back)

    def unlike(self) -> Floats:
        """The same where layers have unlike splits and states."""
        work, moved = self._whole.total, Moved(*(np.asarray(each).min(axis=0) for each in self._moved))
        forward, backward = self._share * work.forward, self._share * work.backward
        plain = moved._replace(forward=0.0 * moved.forward, backward=0.0 * moved.backward)
        return step_seconds(plain, forward, backward, self._outline.pp, self._outline.micro_batches)

    def _stepped(self, forward: Floats, backward: Floats, places: Places = slice(None)) -> Floats:
        """Of shapes on which all layers take so long for a micro-batch."""
        outline = self._outline
        moved, stages, count = self._moved.at(places), outline.pp[places], outline.micro_batches[places]
        seconds = step_seconds(moved, forward, backward, stages, count)
        found: Floats = np.where(self._fits[:, places], seconds, np.inf).min(axis=0, initial=np.inf)
        return np.maximum(found, forward + backward) if self._passes else found

    def closer(self, shape: Shape) -> float:
        """Seconds that a shape takes at least, by what its layers compute but for experts; found for all shapes that
        cut samples and matrices alike at once.
        """
        if self._dense is None:
            return 0.0
        cuts = cuts_of(shape)
        if cuts not in self._costed:
            self._costed.add(cuts)
            self._closest[self._alike[cuts]] = self._by_cuts(shape, self._alike[cuts])
        return float(self._closest[self._place[shape]])

    def _by_cuts(self, shape: Shape, places: Integers) -> Floats:
        assert self._dense is not None, "there are experts"
        whole, number, known = self._whole.total, self._whole.number(self._facts.main), self._dense.whole
        share, own = self._share[places], self._dense.times(shape)
        there, back = (each[places] for each in self._outline.exchanged(tensor=False))
        forward = share * (whole.forward - number * known.forward) + number * own.forward + there
        backward = share * (whole.backward - number * known.backward) + number * own.backward + back
        return self._stepped(forward, backward, places)

    def choice(self, shape: Shape, schedule: Schedule, virtual: int) -> float:
        """Seconds that a choice takes at least by what its layers compute."""
        found = float(self.under(shape, schedule).min(initial=np.inf))
        if schedule == "interleaved":
            found = max(found, float(self._turns(shape, virtual).max()))
        return found

    def under(self, shape: Shape, schedule: Schedule) -> Floats:
        """The same under each state, however the stages are cut: [states]."""
        key = shape, schedule
        if key not in self._under:
            self._under[key] = np.where(self._fits[:, self._place[shape]], self._least(*key), np.inf)
        return self._under[key]

    def _least(self, shape: Shape, schedule: Schedule) -> Floats:
        moved, floor = self._moved.at(self._place[shape]), self.floor(shape.inner)
        work, (both, ratio) = floor.total, self._one(floor, moved)
        found = step_seconds(moved, work.forward, work.backward, shape.pp, shape.micro_batches)
        if schedule in _PASSING:
            found = np.maximum(found, both)
        if schedule != "1f1b":
            return found
        return np.maximum(found, one_f_one_b_bound(both, ratio, shape.pp, shape.micro_batches))

    def _one(self, floor: Floor, moved: Moved) -> tuple[Floats, Floats]:
        """Seconds of a micro-batch on all stages, and how much of those of a layer forward takes at most."""
        work, widths = floor.total, self._facts.widths
        both = np.maximum(work.forward, moved.forward) + np.maximum(work.backward, moved.backward)
        gathering = max(floor.ratio, widths.element / sum(widths))
        return both, np.where(np.asarray(moved.forward) > 0, gathering, floor.ratio)

    def possible(self, shape: Shape, schedule: Schedule, virtual: int, below: float) -> Bools:
        """Under which states the layers that are most in number may have room in the stages' memory, in a step below so
        much.
        """
        main, place = self._room.main(shape.inner), self._place[shape]
        moved, floor = self._of_main.at(place), self._floors[shape.inner]
        once, _ = self._one(floor, self._moved.at(place))
        backward = np.maximum(np.array(main.backward), np.asarray(moved.backward)[:, None])
        paces = [
            Pace(there, tuple(back), whole, floor.numbered, floor.head)
            for there, back, whole in zip(
                np.maximum(main.forward, moved.forward).tolist(), backward.tolist(), once.tolist(), strict=True
            )
        ]
        return self.holds(shape, schedule, virtual, list(range(len(paces))), paces, below=below)

    def holds(
        self, shape: Shape, schedule: Schedule, virtual: int, states: list[int], paces: list[Pace], *, below: float
    ) -> Bools:
        """The same of some states, by their places, where layers are known to take so long at least."""
        below = below if math.isfinite(below) else 1 / _TINY
        number, stage = self._floors[shape.inner].number(self._facts.main), np.arange(shape.pp)
        forward, once, numbered, head, finish = (
            np.array([getattr(pace, name) for pace in paces])[:, None]
            for name in ("forward", "once", "numbered", "head", "finish")
        )
        both = [forward + np.array(back)[:, None] for back in zip(*(pace.backward for pace in paces), strict=True)]
        own, needed = np.zeros(shape.pp), float(number)
        if schedule == "1f1b" and shape.pp > 1:
            rest = shape.micro_batches - 1
            ends = finish * (stage == 0)
            seconds = [rest * each - np.minimum(shape.pp - 1 - stage, rest) * forward + ends for each in both]
            limit = np.repeat(below - once, shape.pp, axis=1)
            limit[:, -1:] -= rest * head
        else:
            seconds = [np.repeat(shape.micro_batches * each, shape.pp, axis=1) for each in both]
            limit = below - self._taken(shape, schedule, virtual, numbered, head)
            if schedule == "interleaved":
                every, own = self._dealt(shape.pp, virtual)
                needed = 0.0
                limit = limit - shape.micro_batches * numbered * (every - own) - finish * own[0]
            elif shape.pp == 1:
                limit = limit - finish * number
        last = 0 if schedule in V_SHAPED else shape.pp - 1
        paced = [np.maximum(each, _TINY) for each in seconds]
        fill = self._room.fill(
            shape,
            self._place[shape],
            states,
            paced,
            flight=flight(schedule, shape.pp, virtual, shape.micro_batches),
            last=last,
        )
        most = np.floor(fill.layers(np.maximum(limit, 0.0)) / _ROUNDED)
        found: Bools = (most.sum(axis=1) >= needed) & (most >= own).all(axis=1)
        return found

    @property
    def main(self) -> Layer:
        """A layer of those that are most in number."""
        return self._facts.main

    def floor(self, inner: Shape) -> Floor:
        """Of a micro-batch on one replica."""
        if inner not in self._floors:
            bench = self.benches.replica(inner)
            self._floors[inner] = self._whole.on(bench, bench.choice.degrees.stage)
        return self._floors[inner]

    def _taken(self, shape: Shape, schedule: Schedule, virtual: int, numbered: Numbers, head: Numbers) -> Floats:
        """Seconds of each group's step in which it does not work on the layers that are most in number, at least: by
        what layers take, [..., 1], [..., groups].
        """
        floor, number = self.floor(shape.inner), self._floors[shape.inner].number(self._facts.main)
        if shape.pp == 1:
            return np.array([shape.micro_batches * (floor.total.both - number * floor.of(self._facts.main).both)])
        if schedule != "interleaved":
            return np.zeros(shape.pp)
        counts = even_counts(self._numbered, shape.pp * virtual)[: shape.pp]
        last = np.arange(shape.pp) == shape.pp - 1
        found: Floats = numbered * np.cumsum([0, *counts[:-1]]) + shape.micro_batches * head * last
        return found

    def _turns(self, shape: Shape, virtual: int) -> Floats:
        """Stages are cut evenly. A group starts when the first stages of those before it have passed a micro-batch on,
        and ends as long before their last backwards.
        """
        floor, (every, own) = self.floor(shape.inner), self._dealt(shape.pp, virtual)
        before = self._taken(shape, "interleaved", virtual, floor.numbered, floor.head)
        others = (every - own) * floor.numbered
        found: Floats = before + shape.micro_batches * (own * floor.of(self._facts.main).both + others)
        return found

    def _dealt(self, groups: int, virtual: int) -> tuple[Floats, Floats]:
        """Numbered layers of each group whose stages are cut evenly, and of these the ones that are most in number."""
        key = groups, virtual
        if key not in self._cuts:
            main = [
                layer.stack is self._facts.main.stack for layer in self.problem.model.layers if layer.index is not None
            ]
            ends = np.cumsum([0, *even_counts(self._numbered, groups * virtual)])
            before = np.concatenate(([0], np.cumsum(main)))[ends]
            every, own = (np.diff(each).reshape(virtual, groups).sum(axis=0) * 1.0 for each in (ends, before))
            self._cuts[key] = every, own
        return self._cuts[key]


def flight(schedule: Schedule, groups: int, virtual: int, micro_batches: int) -> Flight:
    """Micro-batches in flight of a schedule, when there are most. In an interleaved one all stages of a group have
    gradients then, if a round is left when the most are in flight.
    """
    given = schedule, groups, virtual, micro_batches
    alive, ahead = in_flight(*given), round_size(groups, micro_batches) if schedule == "interleaved" else 0
    begun = micro_batches >= alive + ahead if ahead else micro_batches > alive
    return Flight(alive, most_in_flight(*given), begun)


def _alike(shapes: Sequence[Shape]) -> dict[Cuts, Integers]:
    """The places of shapes that cut samples and matrices alike."""
    found: dict[Cuts, list[int]] = {}
    for place, shape in enumerate(shapes):
        found.setdefault(cuts_of(shape), []).append(place)
    return {cuts: np.array(places) for cuts, places in found.items()}
