"""Why no plan meets the wishes, and the nearest that works."""

from collections.abc import Callable

from meshwright.cost.verdict import MemoryVerdict
from meshwright.search.answer import Candidate, in_short
from meshwright.search.choice import Choice
from meshwright.search.problem import Problem
from meshwright.search.space import Shape, problems, realise, schedules, shapes
from meshwright.units import show_bytes

_TRIED = 12
"""Choices that are looked at for the smallest plan."""
Smallest = Callable[[Shape, Choice], Candidate | None]
"""The plan of a choice with least memory; none where it cannot be used."""


def refusal(problem: Problem, considered: int, smallest: Smallest) -> str:
    """What binds, of so many choices, and the nearest that works."""
    cluster, wishes = problem.cluster, problem.wishes
    if not considered:
        return (
            f"no degrees fill the {problem.devices} devices of '{cluster.name}' with a global batch of "
            f"{problem.recipe.global_batch} under these wishes; free a degree, or take a batch that more of the "
            "devices' divisors divide"
        )
    least = _least(problem, smallest)
    if least is None:
        return _ruled_out(problem, considered)
    verdict = MemoryVerdict(least.estimate.memory, least.estimate.hosts)
    if wishes.memory_limit is not None and least.estimate.fits:
        need = max(each.asked.high for each in least.estimate.memory)
        return (
            f"no plan fits into {show_bytes(wishes.memory_limit)}: the smallest that was found asks for "
            f"{verdict.tightest[0].asked} ({in_short(least)}); a limit of {show_bytes(need)} works"
        )
    return f"no plan fits: of the smallest that was found ({in_short(least)}), {verdict.sentence}"


def _ruled_out(problem: Problem, considered: int) -> str:
    """What the rules of the scope say of the plainest plan."""
    shape = min(shapes(problem, problem.devices), key=lambda each: (each.pp, each.tp, each.samples))
    choice = realise(problem, shape)
    faults = problems(problem, choice) if choice else []
    said = "; ".join(f"{each.message} ({each.fix})" for each in faults[:2]) or "free a degree"
    return f"no plan can be used under these wishes, of {considered:,} choices: {said}"


def _least(problem: Problem, smallest: Smallest) -> Candidate | None:
    """A plan with as little memory as there is: all layers computed again, and states sharded as far as may be, on the
    choices that cut a sample most ways.
    """
    found: list[Candidate] = []
    by_cut = sorted(shapes(problem, problem.devices), key=lambda each: (each.samples, each.dp))
    for shape in by_cut[:_TRIED]:
        choice = realise(problem, shape, *next(iter(schedules(problem, shape)), ("1f1b", 1)))
        candidate = smallest(shape, choice) if choice is not None else None
        found += [candidate] if candidate else []
    return min(found, key=lambda each: each.estimate.memory_peak_bytes, default=None)
