"""The front of step time against memory limit: what less memory costs, and what more would gain.

Without more searches it is made of the plans that a search simulated, each at the least limit at which it is said to
fit. Where it is asked for, further searches under ever smaller limits, each within the time limit, make each of its
points the fastest plan of its limit, with a bound.
"""

from collections.abc import Callable
from dataclasses import replace

from meshwright.cost.calibration import Calibration
from meshwright.errors import PlanError
from meshwright.search.answer import Answer, Point, Progress, point_of, undominated
from meshwright.search.scoped import search

_STEPS = 8
"""Searches at most."""
_LESS = 0.85
"""Each limit is so much of what the plan before it needs."""


def searched_front(
    answer: Answer, calibration: Calibration, progress: Callable[[Progress], None] = lambda _: None
) -> tuple[Point, ...]:
    """From the answer down to the least memory that some plan fits into. Ctrl-C ends it."""
    problem, found = answer.problem, [point_of(answer.best)._replace(bound=answer.bound)]
    for _ in range(_STEPS):
        wishes = replace(problem.wishes, memory_limit=_LESS * found[-1].memory_limit)
        try:
            less = search(problem._replace(wishes=wishes), calibration, progress)
        except (PlanError, KeyboardInterrupt):
            break
        found.append(point_of(less.best)._replace(bound=less.bound))
        if less.stopped == "Ctrl-C":
            break
    return undominated(found)
