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
from meshwright.cost.estimate import Estimate, estimate_placement
from meshwright.cost.memory import ACCEPTED, Filled
from meshwright.cost.placement import Placement
from meshwright.cost.verdict import MemoryVerdict
from meshwright.errors import PlanError
from meshwright.plan.rules import Scope, check_plan
from meshwright.plan.spec import Plan
from meshwright.plan.stage_cut import even_counts, numbered_layers
from meshwright.search.bench import Bench
from meshwright.search.bounds import Floor, one_f_one_b_bound, whole_work
from meshwright.search.choice import Choice, Option, degrees_of, inputs_of, make_plan
from meshwright.search.costs import StageCosts
from meshwright.search.problem import Problem
from meshwright.search.room import Room
from meshwright.search.solve import Solution, Solver
from meshwright.search.space import Shape, means_something, realise, schedules, shapes
from meshwright.units import show_bytes

_MUCH_LESS = 0.98
"""Of the best step so far: what may be less than that is simulated at once, since a better best saves work."""
_SCOPES: dict[str, Scope] = {"any": "meaning", "runtime": "runtime"}


class Candidate(NamedTuple):
    """A plan that was simulated."""

    plan: Plan
    choice: Choice
    bound: float
    """Seconds that its choice takes at least."""
    estimate: Estimate
    fits: bool


@dataclass
class Answer:
    """The best plan that was found, and how far it can be from the best."""

    best: Candidate
    bound: float
    """No plan of the space takes less."""
    families: dict[str, Candidate]
    """The best that was simulated of each kind of plan."""
    search_s: float
    considered: int
    simulated: int
    devices: int
    """That work."""
    stopped: str = ""
    """Why the search ended before its proof; empty where it did not."""
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The best plan."""
        return self.best.plan

    @property
    def estimate(self) -> Estimate:
        """Of the best plan."""
        return self.best.estimate

    @property
    def gap(self) -> float:
        """What the best plan takes more than the bound, as a share of it."""
        return max(0.0, self.best.estimate.step_time_s / self.bound - 1)


class Progress(NamedTuple):
    """How far a search is."""

    seconds: float
    best: float | None
    bound: float
    simulated: int


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
    _heap: list[_Item] = field(default_factory=list)
    _works: dict[Shape, Floor] = field(default_factory=dict)
    _benches: dict[Shape, "_Costs"] = field(default_factory=dict)
    _sound: dict[tuple[int, ...], bool] = field(default_factory=dict)

    def run(self) -> Answer:
        """Search. Raises PlanError where no plan meets the wishes."""
        self.began, stopped = time.perf_counter(), ""
        self._ties = itertools.count()
        try:
            self._start()
            while self._heap and not self._proven:
                if time.perf_counter() - self.began > self.problem.wishes.time_limit:
                    stopped = f"the time limit of {self.problem.wishes.time_limit:g} s"
                    break
                self._step(heapq.heappop(self._heap))
                self.progress(Progress(time.perf_counter() - self.began, self._least, self._open, self.simulated))
        except KeyboardInterrupt:
            if self.best is None:
                raise
            stopped = "Ctrl-C"
        return self._answer(stopped)

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
        shape = item.shape
        first = realise(shape)
        if first is None or not self._is_sound(shape, first):
            return
        inner = shape.inner
        if inner not in self._works:
            one = realise(inner)
            assert one is not None, "it has the mesh of the shape"
            self._works[inner] = self._floor.on(Bench(self.problem, one, self._reached), one.degrees.stage)
        floor = self._works[inner]
        work = floor.total
        for schedule, virtual in schedules(self.problem, shape):
            choice = realise(shape, schedule, virtual)
            if schedule == "1f1b":
                bound = one_f_one_b_bound(work.both, work.forward, shape.pp, shape.micro_batches)
            else:
                bound = shape.micro_batches * work.both / shape.pp
                if schedule == "interleaved":
                    bound = max(bound, self._interleaved(floor, shape, virtual))
            self._push(_Item(max(bound, item.bound), next(self._ties), shape, choice))

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
        """By its best cut under each state, if the best cut is short enough were states free."""
        assert item.choice is not None, "it was realised"
        costs = self._costs_of(item.shape, item.choice)
        if len(costs.states) > 1 and not self._solved(item, costs.free, costs.free):
            return
        for each in costs.states:
            found = self._solved(item, each, costs.free)
            if found is None:
                continue
            if self._least is None or found.bound < _MUCH_LESS * self._least:
                self._simulate(found)
            else:
                self._push(found)

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
        if known is None or _order(found) < _order(known):
            self.families[family] = found
        if found.fits and (self.best is None or _order(found) < _order(self.best)):
            self.best = found

    def _answer(self, stopped: str) -> Answer:
        if self.best is None:
            raise PlanError(self._refusal())
        bound = min(self.closed, self._open, self.best.estimate.step_time_s)
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
            return f"no plan means something under these wishes, of {self.considered:,} choices; free a degree"
        verdict = MemoryVerdict(least.estimate.memory, least.estimate.hosts)
        if wishes.memory_limit is not None and least.estimate.fits:
            need = max(each.asked.high for each in least.estimate.memory)
            return (
                f"no plan fits into {show_bytes(wishes.memory_limit)}: the smallest that was found asks for "
                f"{verdict.tightest[0].asked} ({degrees_of(least.choice)}); a limit of {show_bytes(need)} works"
            )
        return f"no plan fits: of the smallest that was found ({degrees_of(least.choice)}), {verdict.sentence}"

    def _smallest(self) -> Candidate | None:
        """A plan with as little memory as there is: all layers computed again, and states sharded as far as may be, on
        the choices that cut a sample most ways.
        """
        found: list[Candidate] = []
        by_cut = sorted(shapes(self.problem, self.problem.cluster.size), key=lambda each: (each.samples, each.dp))
        for shape in by_cut[:_TRIED]:
            choice = realise(shape, *next(iter(schedules(self.problem, shape)), ("1f1b", 1)))
            if choice is None:
                continue
            costs = self._costs_of(shape, choice).states
            if not costs:
                continue
            options = tuple(
                Option(costs[-1].state, costs[-1].bench.recomputes(layer)[0]) for layer in self.problem.model.layers
            )
            solution = Solution(0.0, Solver(costs[-1], choice).even, options)
            candidate = simulated(self.problem, choice, solution, self._reached)
            found += [candidate] if candidate else []
        return min(found, key=lambda each: each.estimate.memory_peak_bytes, default=None)


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


def simulated(problem: Problem, choice: Choice, solution: Solution, calibration: Calibration) -> Candidate | None:
    """The plan of a solution with its estimate; none where the rules of the wanted scope find fault with it."""
    plan = make_plan(problem, choice, solution.cuts, solution.options, problem.wishes.kernels)
    inputs = inputs_of(problem, plan)
    if any(each.severity == "error" for each in check_plan(inputs, _SCOPES[problem.wishes.scope])):
        return None
    estimate = estimate_placement(Placement(inputs, calibration))
    return Candidate(plan, choice, solution.bound, estimate, fits_within(estimate, problem.wishes.memory_limit))


def fits_within(estimate: Estimate, limit: float | None) -> bool:
    """Whether a plan fits into its devices, and into so many bytes of each."""
    if limit is None:
        return estimate.fits
    return estimate.fits and all(_fits(each, limit) for each in estimate.memory)


def _fits(each: Filled, limit: float) -> bool:
    return each.asked.chance_above(limit) <= ACCEPTED


def _order(candidate: Candidate) -> tuple[bool, float]:
    return not candidate.fits, candidate.estimate.step_time_s


def family_of(choice: Choice) -> str:
    """What kind of plan a choice is, by what splits its layers.

    >>> from meshwright.plan.degrees import Degrees
    >>> one = {"tp": 1, "ulysses": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 8, "rank_order": "megatron"}
    >>> family_of(Choice(Degrees(**one), (), 1)), family_of(Choice(Degrees(**one | {"tp": 8, "pp": 2}), (), 1))
    ('data parallel', 'tp + pp')
    """
    degrees = choice.degrees
    used = [name for name in ("tp", "cp", "ulysses", "pp", "ep") if getattr(degrees, name) > 1]
    return " + ".join(used) or "data parallel"
