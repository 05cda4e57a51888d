"""The best plan within a few changes of a given one, and the way there, change by change."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.cost.estimate import estimate_plan
from meshwright.errors import PlanError
from meshwright.model.spans import parse_span
from meshwright.plan.degrees import COUNTED, Degrees
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Offload, Plan, Row
from meshwright.search.answer import Answer, Candidate, Progress, Step, fits_within, in_order
from meshwright.search.bounds import least_step
from meshwright.search.choice import RECOMPUTES, Choice, inputs_of
from meshwright.search.problem import Problem, Wishes
from meshwright.search.scoped import search
from meshwright.search.space import Shape

SETTINGS = ("zero", "recompute", "schedule")
_SAME = 1e-4
"""Of a step: less is no gain worth a line."""
_LEAST = 0.2
"""Seconds that a search gets at least."""


class Coordinates(NamedTuple):
    """The choices of a plan, each of which may be changed. dp is what devices are left for it."""

    tp: int
    ulysses: int
    cp: int
    pp: int
    ep: int
    etp: int
    dp: int
    samples: int
    """Of a micro-batch, for each dp rank."""
    micro_batches: int
    zero: int
    recompute: str | None
    """Of all numbered layers; none: they differ."""
    schedule: str
    virtual: int

    def changes(self, other: "Coordinates") -> list[str]:
        """The choices that differ: the number of micro-batches only where neither it nor their size has stayed, the
        degree of experts only where it does not follow tp.
        """
        return [*_moved(self, other), *(name for name in SETTINGS if self._setting(name) != other._setting(name))]

    def _setting(self, name: str) -> object:
        return (self.schedule, self.virtual) if name == "schedule" else getattr(self, name)

    def shown(self, name: str) -> str:
        """One choice in words."""
        if name == "micro-batch":
            return f"{self.samples} ({self.micro_batches} micro-batches)"
        if name == "schedule":
            return self.schedule + (f" x {self.virtual}" if self.virtual > 1 else "")
        return str(getattr(self, name) if getattr(self, name) is not None else "by layers")


def _moved(one: "Coordinates | Shape", other: "Coordinates | Shape") -> list[str]:
    names = [name for name in COUNTED if getattr(one, name) != getattr(other, name)]
    if "etp" in names and one.etp == one.tp and other.etp == other.tp:
        names.remove("etp")
    if one.samples != other.samples and one.micro_batches != other.micro_batches:
        names.append("micro-batch")
    return names


def coordinates(inputs: Inputs) -> Coordinates:
    """The choices of a plan, by its row with most layers."""
    plan = inputs.plan
    sites = [site for site in inputs.sites if site.row.part is None]
    main = max(sites, key=lambda site: (_numbered(site.row), len(site.names)))
    parts = [site for site in inputs.sites if site.row.part is not None]
    tp, dp = main.ways("tp", "tp+sp"), main.ways("dp", "ep", "copy")
    experts = max(parts, key=lambda site: len(site.names), default=main)
    pp = len(plan.groups)
    words = {site.row.recompute for site in sites if _numbered(site.row)}
    word = next(iter(words)) if len(words) == 1 else None
    return Coordinates(
        tp=tp,
        ulysses=main.ways("ulysses"),
        cp=main.ways("cp"),
        pp=pp,
        ep=experts.ways("ep"),
        etp=experts.ways("tp", "tp+sp"),
        dp=dp,
        samples=max(1, inputs.recipe.global_batch // plan.micro_batches // dp),
        micro_batches=plan.micro_batches,
        zero=int((main.row.state or "zero0")[-1]),
        recompute=word if isinstance(word, str) else None,
        schedule=plan.schedule,
        virtual=max(1, len(plan.stages) // pp),
    )


def _numbered(row: Row) -> bool:
    return parse_span(row.span)[1] is not None


def beyond(plan: Plan) -> list[str]:
    """What a plan has that the search does not choose: it counts in the estimate of the plan as it is alone."""
    rows = [row for stage in plan.stages for row in stage.layers]
    found = {
        "layers that are split unlike": len(
            {_ways(plan, stage.on, row) for stage in plan.stages for row in stage.layers if row.part is None}
        )
        > 1,
        "replicas beside sharding ranks": any(_replicated(row) for row in rows),
        "layers under unlike states": len({row.state for row in rows}) > 1,
        "offload": any(row.offload != Offload() for row in rows),
        "recompute by operators": any(row.recompute not in RECOMPUTES for row in rows),
    }
    return [name for name, has in found.items() if has]


def _ways(plan: Plan, group: str, row: Row) -> tuple[int, ...]:
    return tuple(plan.degree(row, group, *splits) for splits in (("tp", "tp+sp"), ("cp",), ("ulysses",), ("copy",)))


def _replicated(row: Row) -> bool:
    return bool(row.state) and any(
        role.split in ("dp", "cp", "ulysses") and not role.state for role in row.roles.values()
    )


def find_near(
    problem: Problem, calibration: Calibration | None = None, progress: Callable[[Progress], None] = lambda _: None
) -> Answer:
    """The best plan that differs in at most so many choices from the wished one. Raises PlanError where that has no
    meaning.
    """
    return Near(problem, calibration or public_calibration(), progress).run()


@dataclass
class Near:
    """Searches around a plan: for each set of settings that may change, all shapes within the changes that are left."""

    problem: Problem
    calibration: Calibration
    progress: Callable[[Progress], None]
    bound: float = math.inf
    considered: int = 0
    simulated: int = 0
    stopped: str = ""
    path: list[Step] = field(default_factory=list)

    def run(self) -> Answer:
        """Search, then go back over the changes one at a time."""
        self.began = time.perf_counter()
        given, wishes = self._given, self.problem.wishes
        self.base = coordinates(inputs_of(self.problem, given.plan))
        self.best = given
        for free in self._frees(wishes.changes):
            self._search(free)
        bound = min(self.bound, self.best.estimate.step_time_s)
        steps = self._path() if self.best is not given else [Step("as it is", given, 0.0)]
        return Answer(
            problem=self.problem,
            best=self.best,
            bound=bound,
            families={},
            search_s=time.perf_counter() - self.began,
            considered=self.considered,
            simulated=self.simulated,
            devices=self.best.plan.world_size,
            stopped=self.stopped,
            notes=tuple(self._notes()),
            path=tuple(steps),
        )

    @property
    def _given(self) -> Candidate:
        """The plan as it is, whether the search could have made it or not."""
        plan = self.problem.wishes.near
        assert plan is not None, "a plan is near"
        estimate = estimate_plan(inputs_of(self.problem, plan), self.calibration)
        base = coordinates(inputs_of(self.problem, plan))
        degrees = Degrees(**{name: getattr(base, name) for name in (*COUNTED, "dp")}, rank_order="megatron")
        choice = Choice(degrees, (), plan.micro_batches, plan.schedule, base.virtual)
        return Candidate(plan, choice, 0.0, estimate, fits_within(estimate, self.problem.wishes.memory_limit))

    def _frees(self, changes: int) -> Iterator[tuple[str, ...]]:
        """Sets of settings that may change, the largest first; a recompute that differs by layers stays free."""
        settings = [name for name in SETTINGS if name != "recompute" or self.base.recompute in RECOMPUTES]
        for count in range(min(changes, len(settings)), -1, -1):
            yield from combinations(settings, count)

    def _fixed(self, at: Coordinates, free: tuple[str, ...]) -> Wishes:
        """The wishes with the settings of a plan, but for those that are free."""
        wishes, fixed = self.problem.wishes, dict[str, Any]()
        if "zero" not in free:
            fixed["zero"] = at.zero
        if "recompute" not in free and at.recompute in RECOMPUTES:
            fixed["recompute"] = at.recompute
        if "schedule" not in free:
            fixed |= {"schedule": at.schedule, "virtual": at.virtual if at.virtual > 1 else None}
        given = {name: value for name, value in fixed.items() if getattr(wishes, name) is None}
        execution = wishes.execution or wishes.near.execution  # type: ignore[union-attr]
        if wishes.kernels is not None:
            execution = execution.model_copy(update={"kernels": wishes.kernels})
        forbid = (*wishes.forbid, "hsdp", "unlike")
        settled: dict[str, Any] = {"near": None, "kernels": None, "execution": execution, "forbid": forbid}
        return replace(wishes, **(settled | given | {"devices": self._devices}))

    @property
    def _devices(self) -> int:
        assert self.problem.wishes.near is not None, "a plan is near"
        return self.problem.wishes.near.world_size

    def _search(self, free: tuple[str, ...]) -> None:
        """All shapes within the changes that the free settings leave."""
        left = self.problem.wishes.time_limit - (time.perf_counter() - self.began)
        most = self.problem.wishes.changes - len(free)
        try:
            wishes = replace(self._fixed(self.base, free), time_limit=max(_LEAST, left / 2))
        except PlanError:
            return  # what is asked for contradicts what the plan has
        around = self.problem._replace(wishes=wishes, only=lambda shape: len(_moved(self.base, shape)) <= most)
        if self.stopped or left <= 0:
            self.stopped = self.stopped or self.problem.wishes.out_of_time
            self.bound = min(self.bound, least_step(around, self.calibration))
            return
        found = self._run(around, self.best if self.best.fits else None)
        if found is None:
            return
        if found.stopped and not self.stopped:  # at its part of the time
            self.stopped = self.problem.wishes.out_of_time
        self.bound = min(self.bound, found.bound)
        if in_order(found.best) < in_order(self.best):
            self.best = found.best

    def _run(self, problem: Problem, best: Candidate | None) -> Answer | None:
        try:
            found = search(problem, self.calibration, self.progress, best)
        except PlanError:
            return None
        self.considered, self.simulated = self.considered + found.considered, self.simulated + found.simulated
        self.stopped = found.stopped if found.stopped == "Ctrl-C" else self.stopped
        return found

    def _path(self) -> list[Step]:
        """From the given plan to the best: at each step the change whose plan is best alone; together what only works
        together.
        """
        aim = coordinates(inputs_of(self.problem, self.best.plan))
        steps = [Step("as it is", self._given, 0.0)]
        at, left = self.base, self.base.changes(aim)
        self._add(steps, "stages and recompute by the search", self._realised(at))
        while len(left) > 1:
            ways = [(self._realised(self._with(at, aim, name)), name) for name in left]
            possible = [(found, name) for found, name in ways if found is not None]
            if not possible:
                break
            found, name = min(possible, key=lambda each: in_order(each[0]))
            self._add(steps, self._said(at, aim, [name]), found, always=True)
            at, left = self._with(at, aim, name), [each for each in left if each != name]
        said = self._said(at, aim, left) if left else "stages and recompute by the search"
        self._add(steps, said, self.best, always=bool(left))
        return steps

    @staticmethod
    def _add(steps: list[Step], change: str, found: Candidate | None, *, always: bool = False) -> None:
        """A step; left out where it is no change and gains nothing."""
        if found is None:
            return
        before = steps[-1].candidate.estimate.step_time_s
        gain = 1 - found.estimate.step_time_s / before
        if always or abs(gain) > _SAME or found.fits != steps[-1].candidate.fits:
            steps.append(Step(change, found, gain))

    def _said(self, at: Coordinates, aim: Coordinates, names: list[str]) -> str:
        said = [f"{name} {at.shown(name)} → {aim.shown(name)}" for name in names]
        return ", ".join(said)

    def _with(self, at: Coordinates, aim: Coordinates, name: str) -> Coordinates:
        """With one choice as it is in the aim, and what follows from it."""
        if name == "micro-batch":
            return at._replace(samples=aim.samples, micro_batches=aim.micro_batches)
        if name == "schedule":
            return at._replace(schedule=aim.schedule, virtual=aim.virtual)
        changed = at._replace(**{name: getattr(aim, name)})
        if name == "tp" and at.etp == at.tp and aim.etp == aim.tp:
            changed = changed._replace(etp=aim.tp)
        return changed

    def _realised(self, at: Coordinates) -> Candidate | None:
        """The search's plan with exactly these choices; none where there is none that fits."""

        def only(shape: Shape) -> bool:
            same = all(getattr(shape, name) == getattr(at, name) for name in COUNTED)
            return same and (shape.samples == at.samples or shape.micro_batches == at.micro_batches)

        try:
            wishes = self._fixed(at, ())
        except PlanError:
            return None
        found = self._run(self.problem._replace(wishes=replace(wishes, time_limit=1.0), only=only), None)
        return found.best if found else None

    def _notes(self) -> Iterator[str]:
        plan, changes = self.problem.wishes.near, self.problem.wishes.changes
        assert plan is not None, "a plan is near"
        if has := beyond(plan):
            yield f"the given plan has what the search does not choose: {', '.join(has)}"
        if self.best.plan is plan:
            yield f"no plan within {changes} change{'s' * (changes > 1)} is faster than the given one"
