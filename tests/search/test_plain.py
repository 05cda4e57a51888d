"""Models that the search cannot cut get the fastest plan of one stage that fits and can run."""

import pytest

import meshwright as mw
from meshwright.errors import PlanError
from meshwright.plan.rules import Inputs
from meshwright.search.plain import fastest_plain, is_chain
from meshwright.search.problem import Problem, Wishes


def problem_of(name: str, cluster: str) -> Problem:
    precision = {"compute": "fp32", "reduce": "fp32", "master": None}
    recipe = mw.recipe(global_batch=32, sequence=128, loss={"kind": "seq2seq"}, precision=precision)
    return Problem(mw.model(name), mw.cluster(cluster), recipe, Wishes(scope="runtime"))


def seconds(inputs: Inputs) -> float:
    found = mw.estimate(inputs.plan, model=inputs.model, cluster=inputs.cluster, recipe=inputs.recipe)
    return float(found.step_time_s)


def test_an_encoder_decoder_gets_a_plan_that_no_uniform_one_beats() -> None:
    problem = problem_of("t5-large", "8xh100")
    assert not is_chain(problem.model)
    found = fastest_plain(problem)
    errors = [each for each in mw.check(found.plan, **_given(found), scope="runtime") if each.severity == "error"]
    assert not errors
    for zero in (0, 1, 3):
        for count in (1, 2, 4):
            plan = mw.uniform_plan(problem.model, problem.cluster, problem.recipe, zero=zero, micro_batches=count)
            assert seconds(found) <= seconds(found._replace(plan=plan))


def _given(inputs: Inputs) -> dict[str, object]:
    return {"model": inputs.model, "cluster": inputs.cluster, "recipe": inputs.recipe}


def test_a_model_that_fits_nowhere_is_told() -> None:
    with pytest.raises(PlanError, match=r"can be used for 't5-11b' on '1xa100-40gb'.* of 40\.? ?"):
        fastest_plain(problem_of("t5-11b", "1xa100-40gb"))


def test_a_chain_is_left_to_the_search() -> None:
    assert is_chain(mw.model("llama-3.1-8b"))
