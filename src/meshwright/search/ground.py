"""What the outer choices of a search take at least, before any is costed state by state and stage by stage.

First all shapes at once, by FLOPs and links (`search.outline`); then one by one by what layers compute on one replica;
at last by whether the layers that are most in number fit into the stages' memory and time, in any parts
(`search.fill`).
"""

import math
from typing import NamedTuple

import numpy as np

from meshwright.cost.calibration import Calibration
from meshwright.model.spec import Layer
from meshwright.plan.stage_cut import even_counts, numbered_layers
from meshwright.plan.words import Schedule
from meshwright.search.benches import Benches
from meshwright.search.bounds import Floor, alone, one_f_one_b_bound, whole_work
from meshwright.search.choice import Option
from meshwright.search.fill import Fill, Recomputed
from meshwright.search.frontier import Floats
from meshwright.search.outline import Facts, Kept, Moved, Outline, step_seconds
from meshwright.search.problem import Problem
from meshwright.search.space import Shape, shapes
from meshwright.search.stages import in_flight

_PASSING: tuple[Schedule, ...] = ("1f1b", "interleaved")
"""Schedules under which a micro-batch passes all stages there and all the way back."""
_ROUNDED = 1 - 1e-9
_TINY = 1e-30


class _Main(NamedTuple):
    """A layer of those that are most in number, on one replica."""

    forward: float
    backward: tuple[float, ...]
    """Seconds under each recompute."""
    kept: tuple[float, ...]
    """Bytes for each micro-batch in flight."""
    again: tuple[float, ...]
    """Bytes that are there once."""


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
    """The shapes of a problem, with their bounds."""

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
        self._fits = {state: outline.fits(state) for state in self.states}
        self._moved = {state: outline.moved(state) for state in self.states}
        self._of_main = {state: outline.moved_of(state, facts.of_main) for state in self.states}
        self._rests = {
            state: (*outline.rests(state, facts.of_main, facts.optimizer_of_main), outline.once(state, facts.of_main))
            for state in self.states
        }
        self.benches = Benches(problem, calibration)
        self._floors: dict[Shape, Floor] = {}
        self._mains: dict[Shape, _Main] = {}
        self._under: dict[tuple[Shape, Schedule, Kept], float] = {}
        self._numbered = len(numbered_layers(problem.model)) if any(each.pp > 1 for each in self.shapes) else 0

    def bounds(self) -> Floats:
        """Seconds that each shape takes at least; infinity where no state fits."""
        outline, work = self._outline, self._whole.total
        share = 1 / (outline.micro_batches * outline.stage)
        forward, backward = work.forward * share, (work.both - work.forward) * share
        there, back = outline.exchanged()
        found = np.full(len(self.shapes), np.inf)
        for state, moved in self._moved.items():
            seconds = step_seconds(moved, forward + there, backward + back, outline.pp, outline.micro_batches)
            found = np.minimum(found, np.where(self._fits[state], seconds, np.inf))
        if self.problem.wishes.schedule in (None, *_PASSING):
            found = np.maximum(found, forward + there + backward + back)
        return found

    def choice(self, shape: Shape, schedule: Schedule, virtual: int) -> float:
        """Seconds that a choice takes at least by what its layers compute."""
        found = min(self.under(shape, schedule, state) for state in self._moved)
        if schedule == "interleaved":
            found = max(found, float(self._turns(shape, virtual).max()))
        return found

    def under(self, shape: Shape, schedule: Schedule, state: Kept) -> float:
        """The same under a state, however the stages are cut."""
        key = shape, schedule, state
        if key not in self._under:
            self._under[key] = self._least(*key) if self._fits[state][self._place[shape]] else math.inf
        return self._under[key]

    def _least(self, shape: Shape, schedule: Schedule, state: Kept) -> float:
        moved, floor = self._moved[state].at(self._place[shape]), self.floor(shape.inner)
        work, (both, ratio) = floor.total, self._one(floor, moved)
        found = float(step_seconds(moved, work.forward, work.backward, shape.pp, shape.micro_batches))
        if schedule in _PASSING:
            found = max(found, both)
        if schedule != "1f1b":
            return found
        return max(found, one_f_one_b_bound(both, ratio, shape.pp, shape.micro_batches))

    def _one(self, floor: Floor, moved: Moved) -> tuple[float, float]:
        """Seconds of a micro-batch on all stages, and how much of those of a layer forward takes at most."""
        work, widths = floor.total, self._facts.widths
        both = float(max(work.forward, moved.forward) + max(work.backward, moved.backward))
        return both, max(floor.ratio, widths.element / sum(widths)) if moved.forward else floor.ratio

    def possible(self, shape: Shape, schedule: Schedule, virtual: int, state: Kept, below: float) -> bool:
        """Whether the layers that are most in number may have room in the stages' memory, in a step below so much."""
        main, moved = self._main(shape.inner), self._of_main[state].at(self._place[shape])
        forward = max(main.forward, float(moved.forward))
        backward = tuple(max(each, float(moved.backward)) for each in main.backward)
        floor = self._floors[shape.inner]
        once, _ = self._one(floor, self._moved[state].at(self._place[shape]))
        pace = Pace(forward, backward, once, floor.numbered, floor.head)
        return self.holds(shape, schedule, virtual, state, pace, below=below)

    def holds(self, shape: Shape, schedule: Schedule, virtual: int, state: Kept, pace: Pace, *, below: float) -> bool:
        """The same where layers are known to take so long at least."""
        if not math.isfinite(below):
            below = 1 / _TINY
        number, stage = self._floors[shape.inner].number(self._facts.main), np.arange(shape.pp)
        forward, both = pace.forward, [pace.forward + each for each in pace.backward]
        own, needed = np.zeros(shape.pp), float(number)
        if schedule == "1f1b" and shape.pp > 1:
            rest = shape.micro_batches - 1
            ends = pace.finish * (stage == 0)
            paces = [rest * each - np.minimum(shape.pp - 1 - stage, rest) * forward + ends for each in both]
            limit = np.full(shape.pp, below - pace.once)
            limit[-1] -= rest * pace.head
        else:
            paces = [np.full(shape.pp, shape.micro_batches * each) for each in both]
            limit = below - self._taken(shape, schedule, virtual, pace.numbered, pace.head)
            if schedule == "interleaved":
                counts = even_counts(self._numbered, shape.pp * virtual)
                own = np.array([sum(counts[group :: shape.pp]) for group in range(shape.pp)])
                own, needed = own - (self._numbered - number), 0.0
                limit -= pace.finish * max(0, own[0])
            elif shape.pp == 1:
                limit -= pace.finish * number
        paces = [np.maximum(each, _TINY) for each in paces]
        fill = self._fill(shape, in_flight(schedule, shape.pp, virtual, shape.micro_batches), state, paces)
        most = np.floor(fill.layers(np.maximum(limit, 0.0)) / _ROUNDED)
        return bool(most.sum() >= needed and (most >= own).all())

    def _fill(self, shape: Shape, alive: Floats, state: Kept, paces: list[Floats]) -> Fill:
        place, main, facts = self._place[shape], self._main(shape.inner), self._facts
        rest, gradients, once = (float(each[place]) for each in self._rests[state])
        # The gradients of a stage's first backward are there when its micro-batch is not in flight any more.
        begun = np.full(shape.pp, facts.begun) | (shape.micro_batches > alive)
        alive, gradient = np.where(begun, alive, np.maximum(alive - 1, 1)), gradients * (begun | (alive > 1))
        options = [
            Recomputed(pace, rest + gradient + alive * facts.moving * kept, again)
            for pace, kept, again in zip(paces, main.kept, main.again, strict=True)
        ]
        return Fill(options, facts.capacity - once)

    def _main(self, inner: Shape) -> _Main:
        if inner not in self._mains:
            bench, layer = self.benches.replica(inner), self._facts.main
            names = bench.recomputes(layer)
            seconds = [bench.computed(layer, name) for name in names]
            sizes = [bench.bytes(layer, Option(None, name)) for name in names]
            self._mains[inner] = _Main(
                seconds[-1].forward.compute,
                tuple(each.backward.compute for each in seconds),
                tuple(each.kept.kept for each in sizes),
                tuple(each.again for each in sizes),
            )
        return self._mains[inner]

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

    def _taken(self, shape: Shape, schedule: Schedule, virtual: int, numbered: float, head: float) -> Floats:
        """Seconds of each group's step in which it does not work on the layers that are most in number, at least."""
        floor, number = self.floor(shape.inner), self._floors[shape.inner].number(self._facts.main)
        if shape.pp == 1:
            return np.array([shape.micro_batches * (floor.total.both - number * floor.of(self._facts.main).both)])
        found = np.zeros(shape.pp)
        if schedule == "interleaved":
            counts = even_counts(self._numbered, shape.pp * virtual)[: shape.pp]
            found += numbered * np.cumsum([0, *counts[:-1]])
            found[-1] += shape.micro_batches * head
        return found

    def _turns(self, shape: Shape, virtual: int) -> Floats:
        """Stages are cut evenly. A group starts when the first stages of those before it have passed a micro-batch on,
        and ends as long before their last backwards.
        """
        counts, floor = even_counts(self._numbered, shape.pp * virtual), self.floor(shape.inner)
        own = np.array([sum(counts[group :: shape.pp]) for group in range(shape.pp)])
        before = self._taken(shape, "interleaved", virtual, floor.numbered, floor.head)
        return before + shape.micro_batches * own * floor.numbered
