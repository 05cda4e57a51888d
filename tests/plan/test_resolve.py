"""A plan with what it is for: named by the plan, beside its file, or given."""

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.errors import DocumentError, UnknownNameError
from meshwright.plan.resolve import read_inputs
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe

RECIPE = Recipe(global_batch=8, sequence=64)
PLAN = mw.uniform_plan("gpt2", "cpu:4", RECIPE)


def sourced(**sources: str) -> Plan:
    """The plan with files for its model, cluster or recipe."""
    changed: dict[str, Any] = {
        noun: getattr(PLAN, noun).model_copy(update={"source": source}) for noun, source in sources.items()
    }
    return PLAN.model_copy(update=changed)


def test_what_a_plan_names_is_found() -> None:
    assert read_inputs(PLAN) == (PLAN, mw.model("gpt2"), mw.cluster("cpu:4"), RECIPE)


def test_what_is_given_takes_the_place_of_what_is_named() -> None:
    given = read_inputs(PLAN, model="llama-3-8b", cluster="8xh100", recipe={"global_batch": 2, "sequence": 32})
    assert given[1:] == (mw.model("llama-3-8b"), mw.cluster("8xh100"), Recipe(global_batch=2, sequence=32))


@pytest.mark.parametrize("as_file", [True, False])
def test_files_that_a_plan_names_lie_beside_it(as_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Recipe(global_batch=8, sequence=64, seed=5)
    plan = sourced(recipe="mine/recipe.yaml", cluster="machine.yaml")
    (tmp_path / "mine").mkdir()
    other.write(tmp_path / "mine" / "recipe.yaml")
    mw.cluster("cpu:2").write(tmp_path / "machine.yaml")
    plan.write(tmp_path / "plan.yaml")
    monkeypatch.chdir("/")
    found = read_inputs(tmp_path / "plan.yaml") if as_file else read_inputs(plan, folder=tmp_path)
    assert (found.recipe, found.cluster.size) == (other, 2)
    with pytest.raises(DocumentError, match=r"cannot read mine/recipe\.yaml"):
        read_inputs(plan, cluster="cpu:4")


def test_a_recipe_that_the_plan_does_not_carry_must_be_given() -> None:
    plan = mw.uniform_plan("gpt2", "cpu:4", {"global_batch": 8, "sequence": 64, "seed": 5})
    with pytest.raises(DocumentError, match="which it does not carry: give the recipe"):
        read_inputs(plan)
    assert read_inputs(plan, recipe=RECIPE).recipe == RECIPE


@pytest.mark.parametrize("what", [None, 5, {"meshwright_plan": 1}])
def test_what_is_no_plan_is_refused(what: Any) -> None:
    with pytest.raises(DocumentError, match="is no plan: give a Plan or the path of one"):
        mw.check(what)


def test_a_name_that_leads_nowhere_is_told() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gpt2'"):
        read_inputs(PLAN, model="gpt3")


def test_a_word_that_no_function_takes_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match="recipes"):
        mw.estimate(PLAN, recipes=RECIPE)  # type: ignore[call-arg]
