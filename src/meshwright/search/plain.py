"""Plans for models whose layers are no chain of one kind (T5, Swin), which the search cannot cut: one stage, all layers
alike, every combination priced; for `meshwright train`, which needs one.
"""

from collections.abc import Iterator
from itertools import product

from meshwright.cost.estimate import estimate_placement
from meshwright.cost.placement import Placement
from meshwright.cost.verdict import memory_verdict
from meshwright.errors import PlanError
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.stage_cut import numbered_layers
from meshwright.search.choice import inputs_of
from meshwright.search.problem import Problem
from meshwright.search.space import divisors

_MOST = 64  # micro-batches


def is_chain(model: ModelSpec) -> bool:
    """Whether the search knows how to cut a model into stages."""
    try:
        return bool(numbered_layers(model))
    except PlanError:
        return False


def fastest_plain(problem: Problem) -> Inputs:
    """The fastest that fits and that the runtime can run. Raises PlanError where there is none, with what is wrong with
    the first.
    """
    found, refused = [], list[str]()
    for inputs in _every(problem):
        placement = Placement(inputs, None)
        why = _refusal(placement)
        if why is None:
            found.append((estimate_placement(placement).step_time_s, inputs))
        else:
            refused.append(why)
    if not found:
        why = refused[0] if refused else f"its batch of {problem.recipe.global_batch} does not divide"
        raise PlanError(
            f"no plan without a pipeline can be used for '{problem.model.name}' on '{problem.cluster.name}', and "
            f"others are not searched for models whose layers are of several kinds: {why}"
        )
    return min(found, key=lambda each: each[0])[1]


def _refusal(placement: Placement) -> str | None:
    errors = (str(each) for each in check_plan(placement.inputs, "runtime") if each.severity == "error")
    verdict = memory_verdict(placement)
    return next(errors, None if verdict.fits else verdict.sentence)


def _every(problem: Problem) -> Iterator[Inputs]:
    size, kernels = problem.cluster.size, problem.wishes.kernels or "hf-sdpa"
    counts = [count for count in divisors(problem.recipe.global_batch) if count <= _MOST]
    for tp, zero, count in product(divisors(size), (0, 1, 2, 3), counts):
        try:
            plan = uniform_plan(
                problem.model,
                problem.cluster,
                problem.recipe,
                tp=tp,
                zero=zero,  # type: ignore[arg-type]  # one of the four
                micro_batches=count,
                kernels=kernels,
            )
        except PlanError:
            continue
        yield inputs_of(problem, plan)
