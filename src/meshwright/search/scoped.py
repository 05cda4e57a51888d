"""One search; for a system that recomputes alike in all layers, one for each recompute, as one answer."""

import time
from collections.abc import Callable
from dataclasses import replace

from meshwright.cost.calibration import Calibration
from meshwright.errors import PlanError
from meshwright.search.answer import Answer, Candidate, Progress, in_order, undominated
from meshwright.search.planner import Search
from meshwright.search.problem import Problem

_LEAST = 0.2
"""Seconds that a search gets at least."""


def search(
    problem: Problem,
    calibration: Calibration | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    best: Candidate | None = None,
) -> Answer:
    """The answer to a problem; `best`: a plan that is to be beaten. Raises PlanError where no plan meets the wishes."""
    wishes, began = problem.wishes, time.perf_counter()
    if not wishes.alike:
        return Search(problem, calibration, progress, best=best).run()
    found: Answer | None = None
    words = wishes.recomputes[::-1]
    for place, word in enumerate(words):
        left = wishes.time_limit - (time.perf_counter() - began)
        own = replace(wishes, recompute=word, time_limit=max(_LEAST, left / (len(words) - place)))
        try:
            other = Search(
                problem._replace(wishes=own), calibration, progress, best=found.best if found else best
            ).run()
        except PlanError:
            if found is None and place == len(words) - 1:
                raise
            continue
        found = other if found is None else _joined(found, other)
        if found.stopped == "Ctrl-C":
            break
    assert found is not None, "the last search had an answer or a reason"
    found.problem = problem
    if found.stopped and found.stopped != "Ctrl-C":
        found.stopped = wishes.out_of_time
    return found


def _joined(one: Answer, other: Answer) -> Answer:
    """Both, where the second knew the best plan of the first."""
    families = dict(one.families)
    for name, candidate in other.families.items():
        if name not in families or in_order(candidate) < in_order(families[name]):
            families[name] = candidate
    return replace(
        other,
        bound=min(one.bound, other.bound),
        families=families,
        search_s=one.search_s + other.search_s,
        considered=one.considered + other.considered,
        simulated=one.simulated + other.simulated,
        stopped=one.stopped or other.stopped,
        front=undominated([*one.front, *other.front]),
    )
