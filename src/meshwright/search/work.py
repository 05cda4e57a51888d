"""What is open of a search: choices, those that cost least at least first, costed step by step as far as they may win.

Each choice goes through three bounds, each closer and dearer than the one before: by FLOPs, by its layers' computing,
and by its best cut under each state. What comes first by the last of them is simulated in full.
"""

import heapq
import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.search.answer import Candidate, Point, family_of, in_order, point_of, simulated
from meshwright.search.bounds import Floor, one_f_one_b_bound
from meshwright.search.choice import Choice
from meshwright.search.costs import StageCosts
from meshwright.search.ground import Ground
from meshwright.search.outline import Kept
from meshwright.search.problem import Problem
from meshwright.search.solve import Solution, Solver
from meshwright.search.space import Shape, means_something, realise, schedules
from meshwright.search.state_costs import StateCosts

_MUCH_LESS = 0.98
"""Of the best step so far: what may be less than that is simulated at once, since a better best saves work."""


class Item(NamedTuple):
    """A choice on its way: the least that it takes, and how far it is costed."""

    bound: float
    tie: int
    shape: Shape
    choice: Choice | None = None
    state: str | None = None
    solution: Solution | None = None
    settling: bool = False
    """Whether it is simulated, and may be settled."""


class Found(NamedTuple):
    """What came of some work."""

    simulated: int
    families: dict[str, Candidate]
    points: list[Point]
    promising: dict[str, Item]
    closed: float
    open: float


@dataclass
class Work:
    """What is open, and what came of it so far."""

    problem: Problem
    reached: Calibration
    ground: Ground
    costs: StateCosts
    began: float
    """When the search did, by `time.perf_counter`."""
    heap: list[Item] = field(default_factory=list)
    simulated: int = 0
    best: Candidate | None = None
    families: dict[str, Candidate] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    """Of all simulated plans that fit."""
    closed: float = float("inf")
    """The least bound of what was simulated."""
    dropped: float = float("inf")
    """The least bound of what was left out as no better than the best of its time."""
    underway: float = float("inf")
    """The bound of what is being costed, for when that is broken off."""
    promising: dict[str, Item] = field(default_factory=dict)
    """The choice with the least bound of each kind of plan."""
    solved: set[tuple[Shape, str, int]] = field(default_factory=set)
    sound: dict[tuple[int, ...], bool] = field(default_factory=dict)
    ties: "itertools.count[int]" = field(default_factory=itertools.count)

    def part(self, items: Iterable[Item]) -> "Work":
        """Some of it for itself, which knows the same."""
        heap, ties = list(items), itertools.count(next(self.ties))
        heapq.heapify(heap)
        known = (self.problem, self.reached, self.ground, self.costs, self.began)
        return Work(*known, heap, best=self.best, solved=self.solved, sound=self.sound, ties=ties)

    def take(self, found: Found) -> None:
        """What came of a part."""
        self.simulated += found.simulated
        self.points += found.points
        self.closed, self.dropped = min(self.closed, found.closed), min(self.dropped, found.open)
        for family, item in found.promising.items():
            self.promising[family] = min(self.promising.get(family, item), item)
        for candidate in found.families.values():
            self._keep(candidate)

    @property
    def found(self) -> Found:
        """What came of it."""
        return Found(self.simulated, self.families, self.points, self.promising, self.closed, self.open)

    def advance(self, steps: int) -> None:
        """So many steps, unless all is proven or time is up before."""
        while steps and self.next < self.below and not self.late:
            item = heapq.heappop(self.heap)
            self.underway = item.bound
            self._step(item)
            self.underway, steps = float("inf"), steps - 1

    @property
    def late(self) -> bool:
        """Whether time is up."""
        return time.perf_counter() - self.began > self.problem.wishes.time_limit

    @property
    def least(self) -> float | None:
        """Seconds of the best step."""
        return self.best.estimate.step_time_s if self.best else None

    @property
    def below(self) -> float:
        """What is worth finding."""
        return float("inf") if self.best is None else self.best.estimate.step_time_s / (1 + self.problem.wishes.gap)

    @property
    def open(self) -> float:
        """The least of what is not simulated yet."""
        return min(self.next, self.dropped, self.underway)

    @property
    def next(self) -> float:
        """The bound of what comes next."""
        return self.heap[0].bound if self.heap else float("inf")

    def _step(self, item: Item) -> None:
        """One level down; while there is no plan at all, down to the end."""
        if item.settling:
            self._settle(item)
        elif item.solution is not None:
            self._simulate(item)
        elif item.choice is not None:
            self.solve(item)
        else:
            self._weigh(item)

    def _push(self, item: Item) -> None:
        if item.bound >= self.below:
            self.dropped = min(self.dropped, item.bound)
        elif self.best is None and item.solution is None and item.choice and item.choice.schedule == "1f1b":
            self._step(item)
        else:
            heapq.heappush(self.heap, item)

    def _weigh(self, item: Item) -> None:
        """By the computing of its layers, first by that of all but experts."""
        closer = self.ground.closer(item.shape)
        if closer > item.bound:
            self._push(item._replace(bound=closer))
            return
        for found in self._choices(item):
            self._push(found)

    def _choices(self, item: Item) -> Iterator[Item]:
        """A shape under each of its schedules."""
        shape = item.shape
        first = realise(self.problem, shape)
        if first is None or not self.is_sound(shape, first):
            return
        for schedule, virtual in schedules(self.problem, shape):
            choice = realise(self.problem, shape, schedule, virtual)
            bound = self.ground.choice(shape, schedule, virtual)
            found = Item(max(bound, item.bound), next(self.ties), shape, choice)
            if choice is not None:
                family = family_of(choice)
                self.promising[family] = min(self.promising.get(family, found), found)
            if bound < math.inf:
                yield found

    def of_shape(self, shape: Shape) -> Iterator[Item]:
        """A shape under each of its schedules."""
        return self._choices(Item(0.0, next(self.ties), shape))

    def is_sound(self, shape: Shape, choice: Choice) -> bool:
        """Whether no rule finds fault with how a shape cuts layers."""
        key = shape.tp, shape.ulysses, shape.cp, shape.ep, shape.etp
        if key not in self.sound:
            self.sound[key] = means_something(self.problem, choice)
        return self.sound[key]

    def solve(self, item: Item) -> None:
        """By its best cut under each state, once."""
        assert item.choice is not None, "it was realised"
        key = item.shape, item.choice.schedule, item.choice.virtual
        if key in self.solved:
            return
        self.solved.add(key)
        standing, known = self._standing(item), self.below
        for each in standing:
            stands = self.below == known or self._worth(item, [each])
            found = self._solved(item, each) if stands else None
            if found is None:
                continue
            if self.least is None or found.bound < _MUCH_LESS * self.least:
                self._simulate(found)
            else:
                self._push(found)

    def _standing(self, item: Item) -> list[StageCosts]:
        """The states that may win, by what is known before they are costed, and then by their time."""
        shape, choice, ground, below = item.shape, item.choice, self.ground, self.below
        assert choice is not None, "it was realised"
        may = ground.under(shape, choice.schedule) < below
        if may.any():
            may &= ground.possible(shape, choice.schedule, choice.virtual, below)
        stand = {state for state, stands in zip(ground.states, may.tolist(), strict=True) if stands}
        self.dropped = self.dropped if len(stand) == len(ground.states) else min(self.dropped, below)
        inside = {kept.inside for kept in stand}
        whole = self.costs.whole(shape, choice) if False in inside else ()
        every = (*whole, *(self.costs.inside(shape, choice) if True in inside else ()))
        return self._worth(item, [each for each in every if self._kept(choice, each) in stand])

    @staticmethod
    def _kept(choice: Choice, costs: StageCosts) -> Kept:
        return Kept(costs.state, costs.bench.choice.pieces != choice.pieces)

    def _worth(self, item: Item, every: list[StageCosts]) -> list[StageCosts]:
        """The states that may win by their time and memory: first by that of the layers that are most in number, then
        by that of all.
        """
        choice, floor = item.choice, self.ground.floor(item.shape.inner)
        assert choice is not None, "it was realised"
        found = self._holding(item.shape, choice, every, floor)
        found = [each for each in found if self._paced(choice, each) < self.below]
        found = self._holding(item.shape, choice, found, None)
        self.dropped = self.dropped if len(found) == len(every) else min(self.dropped, self.below)
        return found

    def _holding(self, shape: Shape, choice: Choice, every: list[StageCosts], floor: Floor | None) -> list[StageCosts]:
        """The states under which the layers that are most in number may have room in a step that may win."""
        if not every:
            return []
        ground = self.ground
        places = [ground.states.index(self._kept(choice, each)) for each in every]
        paces = [each.pace(ground.main, floor) for each in every]
        held = ground.holds(shape, choice.schedule, choice.virtual, places, paces, below=self.below)
        return [each for each, holds in zip(every, held.tolist(), strict=True) if holds]

    @staticmethod
    def _paced(choice: Choice, costs: StageCosts) -> float:
        """Seconds that a step takes at least by those of a micro-batch."""
        both, ratio = costs.least()
        if choice.schedule == "1f1b":
            return float(one_f_one_b_bound(both, ratio, choice.degrees.pp, choice.micro_batches))
        return choice.micro_batches * both / choice.degrees.pp

    def _solved(self, item: Item, costs: StageCosts) -> Item | None:
        below = self.below
        assert item.choice is not None, "it was realised"
        solution = Solver(costs, item.choice).solve(below)
        if solution is None:
            self.dropped = min(self.dropped, below)
            return None
        bound = max(solution.bound, item.bound)
        choice = replace(item.choice, pieces=costs.bench.choice.pieces)
        return Item(bound, next(self.ties), item.shape, choice, costs.state, solution)

    def _simulate(self, item: Item) -> None:
        """In full: the best by its bound, or where no gap is allowed all that may be better, as far as they are few."""
        choice, solution = item.choice, item.solution
        assert choice is not None, "it was realised"
        assert solution is not None, "it was solved"
        leaves, best = list[Solution](), self.best
        if self.problem.wishes.gap == 0 and not solution.alone:
            leaves = Solver(self.costs.of(item.shape, choice, item.state), choice).leaves()
        for leaf in leaves or [solution]:
            if leaf.bound < self.below:
                self.weigh_in(choice, leaf)
        if leaves or solution.alone:
            return
        if not solution.rough:
            self.closed = min(self.closed, item.bound)
        elif self.best is not best:
            self._settle(item)  # a better best saves work
        else:
            self._push(item._replace(settling=True))

    def _settle(self, item: Item) -> None:
        """What was simulated roughly, to its end."""
        assert item.choice is not None, "it was realised"
        known, costs = self.below, self.costs.of(item.shape, item.choice, item.state)
        found = Solver(costs, item.choice).settle(known)
        if found is None:
            self.dropped = min(self.dropped, known)
            return
        self.weigh_in(item.choice, found)
        self.closed = min(self.closed, max(item.bound, found.bound))

    def weigh_in(self, choice: Choice, solution: Solution) -> None:
        """Simulate a plan, and keep it where it is the best, of all or of its family."""
        found = simulated(self.problem, choice, solution, self.reached)
        if found is None:
            return
        self.simulated += 1
        self.points += [point_of(found)] if found.fits else []
        self._keep(found)

    def _keep(self, found: Candidate) -> None:
        family = family_of(found.choice)
        known = self.families.get(family)
        if known is None or in_order(found) < in_order(known):
            self.families[family] = found
        if found.fits and (self.best is None or in_order(found) < in_order(self.best)):
            self.best = found
