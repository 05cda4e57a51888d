"""The search: outer choices in the order of what they cost at least, costed step by step only as far as they may win.

Each choice goes through three bounds, each closer and dearer than the one before: by FLOPs, by its layers' computing,
and by its best cut under each state. What comes first by the last of them is simulated in full. The search ends when
nothing that is left can beat the best by more than is asked: the rest is proven, not tried.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.errors import PlanError
from meshwright.search.answer import (
    Answer,
    Candidate,
    Point,
    Progress,
    family_of,
    in_order,
    point_of,
    simulated,
    undominated,
)
from meshwright.search.bounds import Floor, one_f_one_b_bound
from meshwright.search.choice import Choice, Option
from meshwright.search.costs import StageCosts
from meshwright.search.ground import Ground
from meshwright.search.mixing import Mixing
from meshwright.search.outline import Kept
from meshwright.search.problem import Problem
from meshwright.search.refusal import refusal
from meshwright.search.solve import Solution, Solver
from meshwright.search.space import Shape, means_something, neighbours, realise, schedules, seeds, shape_of
from meshwright.search.state_costs import StateCosts

_MUCH_LESS = 0.98
"""Of the best step so far: what may be less than that is simulated at once, since a better best saves work."""


class _Item(NamedTuple):
    """A choice on its way: the least that it takes, and how far it is costed."""

    bound: float
    tie: int
    shape: Shape
    choice: Choice | None = None
    state: str | None = None
    solution: Solution | None = None


@dataclass
class Search:
    """One search. `run` may be ended at any time by KeyboardInterrupt; what was found so far is the answer."""

    problem: Problem
    calibration: Calibration | None = None
    progress: Callable[[Progress], None] = lambda _: None
    simulated: int = 0
    considered: int = 0
    best: Candidate | None = None
    families: dict[str, Candidate] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    """Of all simulated plans that fit."""
    closed: float = float("inf")
    """The least bound of what was simulated."""
    dropped: float = float("inf")
    """The least bound of what was left out as no better than the best of its time."""
    _underway: float = float("inf")
    """The bound of what is being costed, for when that is broken off."""
    _heap: list[_Item] = field(default_factory=list)
    _solved_choices: set[tuple[Shape, str, int]] = field(default_factory=set)
    _promising: dict[str, _Item] = field(default_factory=dict)
    """The choice with the least bound of each kind of plan."""
    _sound: dict[tuple[int, ...], bool] = field(default_factory=dict)
    _notes: tuple[str, ...] = ()

    def run(self) -> Answer:
        """Search. Raises PlanError where no plan meets the wishes."""
        self.began, stopped = time.perf_counter(), ""
        self._ties = itertools.count()
        try:
            self._start()
            self._report()
            self._dive()
            self._climb()
            while self._heap and not self._proven:
                if self._late:
                    stopped = self.problem.wishes.out_of_time
                    break
                item = heapq.heappop(self._heap)
                self._underway = item.bound
                self._step(item)
                self._underway = float("inf")
                self._report()
            if self.problem.wishes.mixes and not stopped:
                stopped = self._mix()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            stopped, self.dropped = "Ctrl-C", min(self.dropped, self._underway)
        return self._answer(stopped)

    def _report(self) -> None:
        self.progress(Progress(time.perf_counter() - self.began, self._least, self._open, self.simulated))

    @property
    def _late(self) -> bool:
        return time.perf_counter() - self.began > self.problem.wishes.time_limit

    @cached_property
    def _reached(self) -> Calibration:
        return self.calibration or public_calibration()

    @property
    def _least(self) -> float | None:
        return self.best.estimate.step_time_s if self.best else None

    @property
    def _below(self) -> float:
        """What is worth finding."""
        return float("inf") if self.best is None else self.best.estimate.step_time_s / (1 + self.problem.wishes.gap)

    @property
    def _open(self) -> float:
        """The least of what is not simulated yet."""
        return min(self._heap[0].bound if self._heap else float("inf"), self.dropped)

    @property
    def _proven(self) -> bool:
        return self._heap[0].bound >= self._below

    def _start(self) -> None:
        """Every shape, by its FLOPs and links."""
        self._ground = Ground(self.problem, self._reached)
        self._costs = StateCosts(self.problem, self._ground.benches)
        self.considered += len(self._ground.shapes)
        bounds = zip(self._ground.bounds().tolist(), self._ground.shapes, strict=True)
        self._heap = [_Item(bound, next(self._ties), shape) for bound, shape in bounds if bound < math.inf]
        heapq.heapify(self._heap)

    def _step(self, item: _Item) -> None:
        """One level down; while there is no plan at all, down to the end."""
        if item.solution is not None:
            self._simulate(item)
        elif item.choice is not None:
            self._solve(item)
        else:
            self._weigh(item)

    def _push(self, item: _Item) -> None:
        if item.bound >= self._below:
            self.dropped = min(self.dropped, item.bound)
        elif self.best is None and item.solution is None and item.choice and item.choice.schedule == "1f1b":
            self._step(item)
        else:
            heapq.heappush(self._heap, item)

    def _weigh(self, item: _Item) -> None:
        """By the computing of its layers, first by that of all but experts."""
        closer = self._ground.closer(item.shape)
        if closer > item.bound:
            self._push(item._replace(bound=closer))
            return
        for found in self._choices(item):
            self._push(found)

    def _choices(self, item: _Item) -> Iterator[_Item]:
        """A shape under each of its schedules."""
        shape = item.shape
        first = realise(self.problem, shape)
        if first is None or not self._is_sound(shape, first):
            return
        for schedule, virtual in schedules(self.problem, shape):
            choice = realise(self.problem, shape, schedule, virtual)
            bound = self._ground.choice(shape, schedule, virtual)
            found = _Item(max(bound, item.bound), next(self._ties), shape, choice)
            if choice is not None:
                family = family_of(choice)
                self._promising[family] = min(self._promising.get(family, found), found)
            if bound < math.inf:
                yield found

    def _compare(self) -> None:
        """Simulates a plan of each simple kind that lost by its bound alone, so that it can be said why."""
        missing = [family for family in self._promising if family not in self.families and family.count("+") < 2]
        missing.sort(key=lambda family: (family.count("+"), self._promising[family].bound))
        for item in (self._promising[family] for family in missing[:_COMPARED]):
            assert item.choice is not None, "it was realised"
            for costs in reversed(self._costs.whole(item.shape, item.choice)):
                solution = Solver(costs, item.choice).some()
                if solution is not None:
                    self._weigh_in(item.choice, solution)
                    break
            else:
                self._weigh_in(item.choice, self._least_memory(item.shape, item.choice))

    def _least_memory(self, shape: Shape, choice: Choice) -> Solution:
        """All layers computed again, under the state that keeps least."""
        costs = self._costs.whole(shape, choice)[-1]
        names = (costs.bench.recomputes(layer)[0] for layer in self.problem.model.layers)
        return Solution(0.0, Solver(costs, choice).even, tuple(Option(costs.state, name) for name in names))

    def _dive(self) -> None:
        """A few plain shapes down to the end, so that there is a good plan to beat before the rest is looked at."""
        for shape in seeds(self.problem, [item.shape for item in self._heap]):
            found = [item for item in self._choices(_Item(0.0, next(self._ties), shape)) if item.bound < self._below]
            for item in found[:1] + found[-1:]:
                self._solve(item)
                self._report()

    def _climb(self) -> None:
        """From the best so far on to shapes near it, as long as that finds a better one: they would be looked at for
        the proof in any case.
        """
        seen, known = set[Shape](), self._ground.shapes
        while self.best is not None and (here := shape_of(self.problem, self.best.choice)) not in seen:
            seen.add(here)
            found = (
                item for shape in neighbours(here, known) for item in self._choices(_Item(0.0, next(self._ties), shape))
            )
            for item in sorted(found, key=lambda each: each.bound):
                if item.bound >= self._below or shape_of(self.problem, self.best.choice) != here or self._late:
                    break
                self._solve(item)
                self._report()

    def _is_sound(self, shape: Shape, choice: Choice) -> bool:
        key = shape.tp, shape.ulysses, shape.cp, shape.ep, shape.etp
        if key not in self._sound:
            self._sound[key] = means_something(self.problem, choice)
        return self._sound[key]

    def _solve(self, item: _Item) -> None:
        """By its best cut under each state, once."""
        assert item.choice is not None, "it was realised"
        key = item.shape, item.choice.schedule, item.choice.virtual
        if key in self._solved_choices:
            return
        self._solved_choices.add(key)
        standing, known = self._standing(item), self._below
        for each in standing:
            stands = self._below == known or self._worth(item, [each])
            found = self._solved(item, each) if stands else None
            if found is None:
                continue
            if self._least is None or found.bound < _MUCH_LESS * self._least:
                self._simulate(found)
            else:
                self._push(found)

    def _standing(self, item: _Item) -> list[StageCosts]:
        """The states that may win, by what is known before they are costed, and then by their time."""
        shape, choice, ground, below = item.shape, item.choice, self._ground, self._below
        assert choice is not None, "it was realised"
        may = ground.under(shape, choice.schedule) < below
        if may.any():
            may &= ground.possible(shape, choice.schedule, choice.virtual, below)
        stand = {state for state, stands in zip(ground.states, may.tolist(), strict=True) if stands}
        self.dropped = self.dropped if len(stand) == len(ground.states) else min(self.dropped, below)
        inside = {kept.inside for kept in stand}
        whole = self._costs.whole(shape, choice) if False in inside else ()
        every = (*whole, *(self._costs.inside(shape, choice) if True in inside else ()))
        return self._worth(item, [each for each in every if self._kept(choice, each) in stand])

    @staticmethod
    def _kept(choice: Choice, costs: StageCosts) -> Kept:
        return Kept(costs.state, costs.bench.choice.pieces != choice.pieces)

    def _worth(self, item: _Item, every: list[StageCosts]) -> list[StageCosts]:
        """The states that may win by their time and memory: first by that of the layers that are most in number, then
        by that of all.
        """
        choice, floor = item.choice, self._ground.floor(item.shape.inner)
        assert choice is not None, "it was realised"
        found = self._holding(item.shape, choice, every, floor)
        found = [each for each in found if self._paced(choice, each) < self._below]
        found = self._holding(item.shape, choice, found, None)
        self.dropped = self.dropped if len(found) == len(every) else min(self.dropped, self._below)
        return found

    def _holding(self, shape: Shape, choice: Choice, every: list[StageCosts], floor: Floor | None) -> list[StageCosts]:
        """The states under which the layers that are most in number may have room in a step that may win."""
        if not every:
            return []
        ground = self._ground
        places = [ground.states.index(self._kept(choice, each)) for each in every]
        paces = [each.pace(ground.main, floor) for each in every]
        held = ground.holds(shape, choice.schedule, choice.virtual, places, paces, below=self._below)
        return [each for each, holds in zip(every, held.tolist(), strict=True) if holds]

    @staticmethod
    def _paced(choice: Choice, costs: StageCosts) -> float:
        """Seconds that a step takes at least by those of a micro-batch."""
        both, ratio = costs.least()
        if choice.schedule == "1f1b":
            return float(one_f_one_b_bound(both, ratio, choice.degrees.pp, choice.micro_batches))
        return choice.micro_batches * both / choice.degrees.pp

    def _mix(self) -> str:
        """Layers under unlike splits and states; gives why that was broken off. Where no gap is allowed and there are
        few ways, all that may be better; else what is better on the stages of the best plans, whose layers are alike.
        """
        if self.best is None:
            return ""
        mixing = Mixing(
            self.problem, self._ground, self._weigh_in, self._is_sound, lambda: self._below, lambda: self._late
        )
        if self.problem.wishes.gap > 0 or not mixing.few():
            most = _NEAR * self.best.estimate.step_time_s
            like = self.best
            mixing.near([each for each in self.families.values() if each.fits and each.estimate.step_time_s <= most])
            self._notes = () if self.best is like else (_UNLIKE,)
            return ""
        left = mixing.every()
        self.dropped = self.dropped if left is None else min(self.dropped, left)
        return "" if left is None else self.problem.wishes.out_of_time

    def _solved(self, item: _Item, costs: StageCosts) -> _Item | None:
        below = self._below
        assert item.choice is not None, "it was realised"
        solution = Solver(costs, item.choice).solve(below)
        if solution is None:
            self.dropped = min(self.dropped, below)
            return None
        bound = max(solution.bound, item.bound)
        choice = replace(item.choice, pieces=costs.bench.choice.pieces)
        return _Item(bound, next(self._ties), item.shape, choice, costs.state, solution)

    def _simulate(self, item: _Item) -> None:
        """In full: the best by its bound, or where no gap is allowed all that may be better."""
        choice, solution = item.choice, item.solution
        assert choice is not None, "it was realised"
        assert solution is not None, "it was solved"
        if choice.schedule != "1f1b":
            self._weigh_in(choice, solution)  # it is the only plan of its choice and state
        elif self.problem.wishes.gap > 0:
            self.closed = min(self.closed, item.bound)
            self._weigh_in(choice, solution)
        else:
            costs = self._costs.of(item.shape, choice, item.state)
            for leaf in sorted(Solver(costs, choice).leaves(), key=lambda each: each.bound):
                if leaf.bound < self._below:
                    self._weigh_in(choice, leaf)

    def _weigh_in(self, choice: Choice, solution: Solution) -> None:
        """Simulate a plan, and keep it where it is the best, of all or of its family."""
        found = simulated(self.problem, choice, solution, self._reached)
        if found is None:
            return
        self.simulated += 1
        self.points += [point_of(found)] if found.fits else []
        family = family_of(choice)
        known = self.families.get(family)
        if known is None or in_order(found) < in_order(known):
            self.families[family] = found
        if found.fits and (self.best is None or in_order(found) < in_order(self.best)):
            self.best = found

    def _answer(self, stopped: str) -> Answer:
        if self.best is None:
            raise PlanError(refusal(self.problem, self.considered, self._smallest))
        bound = min(self.closed, self._open, self.best.estimate.step_time_s)
        if stopped != "Ctrl-C":
            self._compare()
        return Answer(
            problem=self.problem,
            best=self.best,
            bound=bound,
            families=self.families,
            search_s=time.perf_counter() - self.began,
            considered=self.considered,
            simulated=self.simulated,
            devices=self.best.choice.devices,
            stopped=stopped,
            notes=self._notes,
            front=undominated(self.points),
        )

    def _smallest(self, shape: Shape, choice: Choice) -> Candidate | None:
        """The plan of a choice with least memory; none where it cannot be used."""
        if not self._costs.whole(shape, choice):
            return None
        return simulated(self.problem, choice, self._least_memory(shape, choice), self._reached)


_NEAR = 1.05
"""Times the best step: of plans no slower, layers are tried under unlike splits and states."""
_UNLIKE = (
    "layers are unlike: that was tried on the stages of the best plans alone, and the proof is of plans of like layers"
)
_COMPARED = 4
"""Kinds of plans that are simulated for comparison alone."""
