"""The search: outer choices in the order of what they cost at least, costed step by step only as far as they may win.

Each choice goes through three bounds, each closer and dearer than the one before: by FLOPs, by its layers' computing,
and by its best cut under each state. What comes first by the last of them is simulated in full. The search ends when
nothing that is left can beat the best by more than is asked: the rest is proven, not tried.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.cost.verdict import MemoryVerdict
from meshwright.errors import PlanError
from meshwright.plan.stage_cut import even_counts, numbered_layers
from meshwright.search.answer import Answer, Candidate, Progress, family_of, in_order, simulated
from meshwright.search.bench import Bench
from meshwright.search.bounds import Floor, one_f_one_b_bound, whole_work
from meshwright.search.choice import Choice, Option, degrees_of
from meshwright.search.costs import StageCosts
from meshwright.search.problem import Problem
from meshwright.search.room import Room
from meshwright.search.solve import Solution, Solver
from meshwright.search.space import Shape, means_something, problems, realise, schedules, seeds, shapes
from meshwright.units import show_bytes

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
    closed: float = float("inf")
    """The least bound of what was simulated."""
    dropped: float = float("inf")
    """The least bound of what was left out as no better than the best of its time."""
    _underway: float = float("inf")
    """The bound of what is being costed, for when that is broken off."""
    _heap: list[_Item] = field(default_factory=list)
    _works: dict[Shape, Floor] = field(default_factory=dict)
    _benches: dict[Shape, "_Costs"] = field(default_factory=dict)
    _solved_choices: set[tuple[Shape, str, int]] = field(default_factory=set)
    _promising: dict[str, _Item] = field(default_factory=dict)
    """The choice with the least bound of each kind of plan."""
    _sound: dict[tuple[int, ...], bool] = field(default_factory=dict)

    def run(self) -> Answer:
        """Search. Raises PlanError where no plan meets the wishes."""
        self.began, stopped = time.perf_counter(), ""
        self._ties = itertools.count()
        try:
            self._start()
            self._dive()
            while self._heap and not self._proven:
                if time.perf_counter() - self.began > self.problem.wishes.time_limit:
                    stopped = f"the time limit of {self.problem.wishes.time_limit:g} s"
                    break
                item = heapq.heappop(self._heap)
                self._underway = item.bound
                self._step(item)
                self._underway = float("inf")
                self._report()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            stopped, self.dropped = "Ctrl-C", min(self.dropped, self._underway)
        return self._answer(stopped)

    def _report(self) -> None:
        self.progress(Progress(time.perf_counter() - self.began, self._least, self._open, self.simulated))

    @cached_property
    def _reached(self) -> Calibration:
        return self.calibration or public_calibration()

    @cached_property
    def _numbered(self) -> int:
        return len(numbered_layers(self.problem.model))

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
        """Every shape, by its FLOPs."""
        devices = self.problem.cluster.size
        self._floor = whole_work(self.problem, self._reached)
        work = self._floor.total
        overlapping = self.problem.wishes.schedule != "1f1b"
        for shape in shapes(self.problem, devices):
            self.considered += 1
            bound = work.both / devices
            if shape.pp == 1 or not overlapping:
                count, stage = shape.micro_batches, devices // shape.pp
                bound = one_f_one_b_bound(
                    work.both / count / stage, work.forward / count / stage, shape.pp, count
                )  # fmt: skip
            self._heap.append(_Item(bound, next(self._ties), shape))
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
        """By the computing of its layers."""
        for found in self._choices(item):
            self._push(found)

    def _choices(self, item: _Item) -> Iterator[_Item]:
        """A shape under each of its schedules."""
        shape = item.shape
        first = realise(self.problem, shape)
        if first is None or not self._is_sound(shape, first):
            return
        floor = self._floor_of(shape.inner)
        work = floor.total
        for schedule, virtual in schedules(self.problem, shape):
            choice = realise(self.problem, shape, schedule, virtual)
            if schedule == "1f1b":
                bound = one_f_one_b_bound(work.both, work.forward, shape.pp, shape.micro_batches)
            else:
                bound = shape.micro_batches * work.both / shape.pp
                if schedule == "interleaved":
                    bound = max(bound, self._interleaved(floor, shape, virtual))
            found = _Item(max(bound, item.bound), next(self._ties), shape, choice)
            if choice is not None:
                family = family_of(choice)
                self._promising[family] = min(self._promising.get(family, found), found)
            yield found

    def _compare(self) -> None:
        """Simulates a plan of each simple kind that lost by its bound alone, so that it can be said why."""
        missing = [family for family in self._promising if family not in self.families and family.count("+") < 2]
        missing.sort(key=lambda family: (family.count("+"), self._promising[family].bound))
        for item in (self._promising[family] for family in missing[:_COMPARED]):
            assert item.choice is not None, "it was realised"
            for costs in reversed(self._costs_of(item.shape, item.choice).states):
                solution = Solver(costs, item.choice).solve(float("inf"))
                if solution is not None:
                    self._weigh_in(item.choice, solution)
                    break
            else:
                self._weigh_in(item.choice, self._least_memory(item.shape, item.choice))

    def _least_memory(self, shape: Shape, choice: Choice) -> Solution:
        """All layers computed again, under the state that keeps least."""
        costs = self._costs_of(shape, choice).states[-1]
        names = (costs.bench.recomputes(layer)[0] for layer in self.problem.model.layers)
        return Solution(0.0, Solver(costs, choice).even, tuple(Option(costs.state, name) for name in names))

    def _floor_of(self, inner: Shape) -> Floor:
        if inner not in self._works:
            one = realise(self.problem, inner)
            assert one is not None, "it has the mesh of its shape"
            self._works[inner] = self._floor.on(Bench(self.problem, one, self._reached), one.degrees.stage)
        return self._works[inner]

    def _dive(self) -> None:
        """A few plain shapes down to the end, so that there is a good plan to beat before the rest is looked at."""
        for shape in seeds(self.problem, [item.shape for item in self._heap]):
            found = [item for item in self._choices(_Item(0.0, next(self._ties), shape)) if item.bound < self._below]
            for item in found[:1] + found[-1:]:
                self._solve(item)
                self._report()

    def _interleaved(self, floor: Floor, shape: Shape, virtual: int) -> float:
        """Stages are cut evenly. A group starts when the first stages of those before it have passed a micro-batch on,
        and ends as long before their last backwards.
        """
        counts = even_counts(self._numbered, shape.pp * virtual)
        most, ahead = 0.0, 0
        for group in range(shape.pp):
            own = sum(counts[group :: shape.pp]) * floor.numbered + (group == shape.pp - 1) * floor.head
            most = max(most, ahead * floor.numbered + shape.micro_batches * own)
            ahead += counts[group]
        return most

    def _is_sound(self, shape: Shape, choice: Choice) -> bool:
        key = shape.tp, shape.ulysses, shape.cp, shape.ep, shape.etp
        if key not in self._sound:
            self._sound[key] = means_something(self.problem, choice)
        return self._sound[key]

    def _solve(self, item: _Item) -> None:
        """By its best cut under each state, if the best cut is short enough were states free; once."""
        assert item.choice is not None, "it was realised"
        key = item.shape, item.choice.schedule, item.choice.virtual
        if key in self._solved_choices:
            return
        self._solved_choices.add(key)
        costs = self._costs_of(item.shape, item.choice)
        below = self._below
        if len(costs.states) > 1 and not Solver(costs.free, item.choice).possible(below):
            self.dropped = min(self.dropped, below)
            return
        for each in costs.states:
            found = self._solved(item, each, costs.free) if self._worth(item.choice, each) else None
            if found is None:
                continue
            if self._least is None or found.bound < _MUCH_LESS * self._least:
                self._simulate(found)
            else:
                self._push(found)

    def _worth(self, choice: Choice, costs: StageCosts) -> bool:
        """Whether a state may win by its time alone."""
        both, forward = costs.least()
        bound = choice.micro_batches * both / choice.degrees.pp
        if choice.schedule == "1f1b":
            bound = one_f_one_b_bound(both, forward, choice.degrees.pp, choice.micro_batches)
        if bound < self._below:
            return True
        self.dropped = min(self.dropped, bound)
        return False

    def _costs_of(self, shape: Shape, choice: Choice) -> "_Costs":
        if shape not in self._benches:
            bench = Bench(self.problem, choice, self._reached)
            limit = self.problem.wishes.memory_limit
            room = Room(bench.placement, bench.group, pipeline=shape.pp > 1, limit=limit)
            states = tuple(_states(self.problem, choice))
            free = StageCosts(bench, states[-1] if states else None, room, free=True)
            self._benches[shape] = _Costs(free, tuple(StageCosts(bench, state, room) for state in states))
        return self._benches[shape]

    def _solved(self, item: _Item, costs: StageCosts, floor: StageCosts) -> _Item | None:
        below = self._below
        assert item.choice is not None, "it was realised"
        solution = Solver(costs, item.choice, floor).solve(below)
        if solution is None:
            self.dropped = min(self.dropped, below)
            return None
        bound = max(solution.bound, item.bound)
        return _Item(bound, next(self._ties), item.shape, item.choice, costs.state, solution)

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
            costs = next(each for each in self._benches[item.shape].states if each.state == item.state)
            for leaf in sorted(Solver(costs, choice).leaves(), key=lambda each: each.bound):
                if leaf.bound < self._below:
                    self._weigh_in(choice, leaf)

    def _weigh_in(self, choice: Choice, solution: Solution) -> None:
        """Simulate a plan, and keep it where it is the best, of all or of its family."""
        found = simulated(self.problem, choice, solution, self._reached)
        if found is None:
            return
        self.simulated += 1
        family = family_of(choice)
        known = self.families.get(family)
        if known is None or in_order(found) < in_order(known):
            self.families[family] = found
        if found.fits and (self.best is None or in_order(found) < in_order(self.best)):
            self.best = found

    def _answer(self, stopped: str) -> Answer:
        if self.best is None:
            raise PlanError(self._refusal())
        bound = min(self.closed, self._open, self.best.estimate.step_time_s)
        if stopped != "Ctrl-C":
            self._compare()
        return Answer(
            best=self.best,
            bound=bound,
            families=self.families,
            search_s=time.perf_counter() - self.began,
            considered=self.considered,
            simulated=self.simulated,
            devices=self.best.choice.devices,
            stopped=stopped,
        )

    def _refusal(self) -> str:
        """What binds, and the nearest that works."""
        cluster, wishes = self.problem.cluster, self.problem.wishes
        if not self.considered:
            batch = self.problem.recipe.global_batch
            return (
                f"no degrees fill the {cluster.size} devices of '{cluster.name}' with a global batch of {batch} under "
                "these wishes; free a degree, or take a batch that more of the devices' divisors divide"
            )
        least = self._smallest()
        if least is None:
            return self._ruled_out()
        verdict = MemoryVerdict(least.estimate.memory, least.estimate.hosts)
        if wishes.memory_limit is not None and least.estimate.fits:
            need = max(each.asked.high for each in least.estimate.memory)
            return (
                f"no plan fits into {show_bytes(wishes.memory_limit)}: the smallest that was found asks for "
                f"{verdict.tightest[0].asked} ({degrees_of(least.choice)}); a limit of {show_bytes(need)} works"
            )
        return f"no plan fits: of the smallest that was found ({degrees_of(least.choice)}), {verdict.sentence}"

    def _ruled_out(self) -> str:
        """What the rules of the scope say of the plainest plan."""
        shape = min(shapes(self.problem, self.problem.cluster.size), key=lambda each: (each.pp, each.tp, each.samples))
        choice = realise(self.problem, shape)
        faults = problems(self.problem, choice) if choice else []
        said = "; ".join(f"{each.message} ({each.fix})" for each in faults[:2]) or "free a degree"
        return f"no plan can be used under these wishes, of {self.considered:,} choices: {said}"

    def _smallest(self) -> Candidate | None:
        """A plan with as little memory as there is: all layers computed again, and states sharded as far as may be, on
        the choices that cut a sample most ways.
        """
        found: list[Candidate] = []
        by_cut = sorted(shapes(self.problem, self.problem.cluster.size), key=lambda each: (each.samples, each.dp))
        for shape in by_cut[:_TRIED]:
            choice = realise(self.problem, shape, *next(iter(schedules(self.problem, shape)), ("1f1b", 1)))
            if choice is None:
                continue
            if not self._costs_of(shape, choice).states:
                continue
            solution = self._least_memory(shape, choice)
            candidate = simulated(self.problem, choice, solution, self._reached)
            found += [candidate] if candidate else []
        return min(found, key=lambda each: each.estimate.memory_peak_bytes, default=None)


_COMPARED = 4
"""Kinds of plans that are simulated for comparison alone."""
_TRIED = 12
"""Choices that are looked at for the smallest plan."""


class _Costs(NamedTuple):
    """Of a shape: were states free, with the memory of the one that keeps least; and under each."""

    free: StageCosts
    states: tuple[StageCosts, ...]


def _states(problem: Problem, choice: Choice) -> Iterator[str | None]:
    """What can shard the equal parameters of a choice."""
    for state in problem.wishes.states:
        roles = (*choice.roles(state).values(), *choice.expert_roles(state).values())
        if state is None or any(role.state for role in roles):
            yield state
