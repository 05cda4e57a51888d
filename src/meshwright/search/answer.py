"""What a search answers with: the best plan, how far it can be from the best, and the best of other kinds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.cost.estimate import Estimate, estimate_placement
from meshwright.cost.memory import ACCEPTED, Filled
from meshwright.cost.placement import Placement
from meshwright.plan.rules import check_plan
from meshwright.plan.spec import Plan
from meshwright.search.choice import Choice, degrees_of, inputs_of, make_plan
from meshwright.search.problem import RULES_OF, Objective, Problem
from meshwright.search.solve import Solution


class Candidate(NamedTuple):
    """A plan that was simulated."""

    plan: Plan
    choice: Choice
    bound: float
    """Seconds that its choice takes at least."""
    estimate: Estimate
    fits: bool
    solution: Solution | None = None
    """What it was made from; none where it was given."""


def in_short(candidate: Candidate) -> str:
    """A plan in a line: degrees, states, and whether layers of a stage are split unlike."""
    stages = [[row for row in stage.layers if row.part is None] for stage in candidate.plan.stages]
    states = dict.fromkeys(row.state for stage in stages for row in stage)
    unlike = any(len({tuple(role.split for role in row.roles.values()) for row in stage}) > 1 for stage in stages)
    return degrees_of(candidate.choice, list(states)) + (", unlike splits" if unlike else "")


class Point(NamedTuple):
    """A plan of the front: the least memory limit at which it is said to fit, and its step time."""

    memory_limit: float
    step_time_s: float
    degrees: str
    bound: float | None = None
    """Seconds that no plan beats under that limit; none where it was not searched for."""


def point_of(candidate: Candidate) -> Point:
    """A plan as a point of the front."""
    limit = max(each.asked.passed_with(ACCEPTED) for each in candidate.estimate.memory)
    return Point(limit, candidate.estimate.step_time_s, in_short(candidate))


def undominated(points: Iterable[Point]) -> tuple[Point, ...]:
    """Those that are faster than all with less memory or as much, the fastest first.

    >>> [each.degrees for each in undominated([Point(9, 1, "a"), Point(5, 2, "b"), Point(6, 3, "c"), Point(4, 4, "d")])]
    ['a', 'b', 'd']
    """
    found: list[Point] = []
    for point in sorted(points):
        if not found or point.step_time_s < found[-1].step_time_s:
            found.append(point)
    return tuple(reversed(found))


class Tried(NamedTuple):
    """What one of several searches found: for so many devices and such a batch."""

    devices: int
    batch: int
    candidate: Candidate | None
    why: str = ""
    """Why it is no answer; empty where it could be."""
    bound: float = 0.0
    """Seconds that no plan of it beats."""
    price: float | None = None
    """US dollars of a million tokens."""


class Step(NamedTuple):
    """A change on the way from a given plan to the answer."""

    change: str
    candidate: Candidate
    gain: float
    """The share of the step time before it that it saves."""


@dataclass
class Answer:
    """The best plan that was found, and how far it can be from the best."""

    problem: Problem
    """What was searched last: with the batch and the number of devices that were chosen."""
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
    objective: Objective = "time"
    front: tuple[Point, ...] = ()
    """Step time against memory limit, the fastest first."""
    path: tuple[Step, ...] = ()
    """From the plan that was given, which is first, to the best; empty where none was given."""
    tried: tuple[Tried, ...] = ()
    """What else was searched: other numbers of devices, other batches; empty where that was fixed."""

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


def simulated(problem: Problem, choice: Choice, solution: Solution, calibration: Calibration) -> Candidate | None:
    """The plan of a solution with its estimate; none where the rules of the wanted scope find fault with it."""
    plan = make_plan(problem, choice, solution.cuts, solution.options)
    inputs = inputs_of(problem, plan)
    if any(each.severity == "error" for each in check_plan(inputs, RULES_OF[problem.wishes.scope])):
        return None
    estimate = estimate_placement(Placement(inputs, calibration))
    fits = fits_within(estimate, problem.wishes.memory_limit)
    return Candidate(plan, choice, solution.bound, estimate, fits, solution)


def fits_within(estimate: Estimate, limit: float | None) -> bool:
    """Whether a plan fits into its devices, and into so many bytes of each."""
    if limit is None:
        return estimate.fits
    return estimate.fits and all(_fits(each, limit) for each in estimate.memory)


def _fits(each: Filled, limit: float) -> bool:
    return each.asked.chance_above(limit) <= ACCEPTED


def in_order(candidate: Candidate) -> tuple[bool, float]:
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
