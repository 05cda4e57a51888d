"""The search: outer choices in the order of what they cost at least, costed step by step only as far as they may win.

A few plain ones are costed to the end, and those near the best of them; what is left is dealt among lanes. The search
ends when nothing that is left can beat the best by more than is asked: the rest is proven, not tried.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.errors import PlanError
from meshwright.search.answer import Answer, Candidate, Progress, simulated, undominated
from meshwright.search.choice import Choice, Option
from meshwright.search.ground import Ground
from meshwright.search.lanes import Lanes
from meshwright.search.mixing import Mixing
from meshwright.search.problem import Problem
from meshwright.search.refusal import refusal
from meshwright.search.solve import Solution, Solver
from meshwright.search.space import Shape, neighbours, seeds, shape_of
from meshwright.search.state_costs import StateCosts
from meshwright.search.work import Item, Work


@dataclass
class Search:
    """One search. `run` may be ended at any time by KeyboardInterrupt; what was found so far is the answer."""

    problem: Problem
    calibration: Calibration | None = None
    progress: Callable[[Progress], None] = lambda _: None
    best: Candidate | None = None
    """A plan that is to be beaten."""
    _notes: tuple[str, ...] = ()

    def run(self) -> Answer:
        """Search. Raises PlanError where no plan meets the wishes."""
        stopped = ""
        self.start()
        try:
            self._report(self.work.open)
            self._dive()
            self._climb()
            stopped = self._prove()
            if self.problem.wishes.mixes and not stopped:
                stopped = self._mix()
        except KeyboardInterrupt:
            if self.work.best is None:
                raise
            stopped, self.work.dropped = "Ctrl-C", self.work.open
        return self._answer(stopped)

    def _report(self, left: float) -> None:
        """`left`: seconds that what is open takes at least."""
        self.progress(Progress(time.perf_counter() - self.work.began, self.work.least, left, self.work.simulated))

    def start(self) -> None:
        """Every shape, by its FLOPs and links."""
        began, reached = time.perf_counter(), self.calibration or public_calibration()
        ground = Ground(self.problem, reached)
        bounds = enumerate(zip(ground.bounds().tolist(), ground.shapes, strict=True))
        items = [Item(bound, tie, shape) for tie, (bound, shape) in bounds if bound < math.inf]
        heapq.heapify(items)
        costs, ties = StateCosts(self.problem, ground.benches), itertools.count(len(ground.shapes))
        self.work = Work(self.problem, reached, ground, costs, began, items, best=self.best, ties=ties)

    def _prove(self) -> str:
        """What is left, side by side in lanes; gives why that was broken off."""
        with Lanes(self.work, self.problem.wishes.processes) as lanes:
            while lanes.open < self.work.below:
                if self.work.late:
                    return self.problem.wishes.out_of_time
                lanes.advance()
                self._report(min(lanes.open, self.work.dropped))
        return ""

    def _compare(self) -> None:
        """Simulates a plan of each simple kind that lost by its bound alone, so that it can be said why."""
        work, bounds = self.work, {family: item.bound for family, item in self.work.promising.items()}
        missing = [family for family in bounds if family not in work.families and family.count("+") < 2]
        missing.sort(key=lambda family: (family.count("+"), bounds[family]))
        for item in (work.promising[family] for family in missing[:_COMPARED]):
            assert item.choice is not None, "it was realised"
            for costs in reversed(work.costs.whole(item.shape, item.choice)):
                solution = Solver(costs, item.choice).some()
                if solution is not None:
                    work.weigh_in(item.choice, solution)
                    break
            else:
                work.weigh_in(item.choice, self._least_memory(item.shape, item.choice))

    def _least_memory(self, shape: Shape, choice: Choice) -> Solution:
        """All layers computed again, under the state that keeps least."""
        costs = self.work.costs.whole(shape, choice)[-1]
        names = (costs.bench.recomputes(layer)[0] for layer in self.problem.model.layers)
        return Solution(0.0, Solver(costs, choice).even, tuple(Option(costs.state, name) for name in names))

    def _dive(self) -> None:
        """A few plain shapes down to the end, so that there is a good plan to beat before the rest is looked at."""
        work = self.work
        for shape in seeds(self.problem, [item.shape for item in work.heap]):
            found = [item for item in work.of_shape(shape) if item.bound < work.below]
            for item in found[:1] + found[-1:]:
                work.solve(item)
                self._report(work.open)

    def _climb(self) -> None:
        """From the best so far on to shapes near it, as long as that finds a better one: they would be looked at for
        the proof in any case.
        """
        seen, work = set[Shape](), self.work
        while work.best is not None and (here := shape_of(self.problem, work.best.choice)) not in seen:
            seen.add(here)
            found = (item for shape in neighbours(here, work.ground.shapes) for item in work.of_shape(shape))
            for item in sorted(found, key=lambda each: each.bound):
                if item.bound >= work.below or shape_of(self.problem, work.best.choice) != here or work.late:
                    break
                work.solve(item)
                self._report(work.open)

    def _mix(self) -> str:
        """Layers under unlike splits and states; gives why that was broken off. Where no gap is allowed and there are
        few ways, all that may be better; else what is better on the stages of the best plans, whose layers are alike.
        """
        work, like = self.work, self.work.best
        if like is None:
            return ""
        mixing = Mixing(self.problem, work.ground, work.weigh_in, work.is_sound, lambda: work.below, lambda: work.late)
        if self.problem.wishes.gap > 0 or not mixing.few():
            most = _NEAR * like.estimate.step_time_s
            mixing.near([each for each in work.families.values() if each.fits and each.estimate.step_time_s <= most])
            self._notes = () if work.best is like else (_UNLIKE,)
            return ""
        left = mixing.every()
        work.dropped = work.dropped if left is None else min(work.dropped, left)
        return "" if left is None else self.problem.wishes.out_of_time

    def _answer(self, stopped: str) -> Answer:
        work, best, considered = self.work, self.work.best, len(self.work.ground.shapes)
        if best is None:
            raise PlanError(refusal(self.problem, considered, self._smallest))
        bound = min(work.closed, work.open, best.estimate.step_time_s)
        if stopped != "Ctrl-C":
            self._compare()
        return Answer(
            problem=self.problem,
            best=best,
            bound=bound,
            families=work.families,
            search_s=time.perf_counter() - work.began,
            considered=considered,
            simulated=work.simulated,
            devices=best.choice.devices,
            stopped=stopped,
            notes=self._notes,
            front=undominated(work.points),
        )

    def _smallest(self, shape: Shape, choice: Choice) -> Candidate | None:
        """The plan of a choice with least memory; none where it cannot be used."""
        if not self.work.costs.whole(shape, choice):
            return None
        return simulated(self.problem, choice, self._least_memory(shape, choice), self.work.reached)


_NEAR = 1.05
"""Times the best step: of plans no slower, layers are tried under unlike splits and states."""
_UNLIKE = (
    "layers are unlike: that was tried on the stages of the best plans alone, and the proof is of plans of like layers"
)
_COMPARED = 4
"""Kinds of plans that are simulated for comparison alone."""
