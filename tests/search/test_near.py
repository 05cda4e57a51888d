"""Plans near a given one: within so many changes, and step by step."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import meshwright as mw
from meshwright.cli import command_line
from meshwright.errors import PlanError
from meshwright.plan.rules import Inputs
from meshwright.search import near
from meshwright.search.answer import Answer
from meshwright.search.near import beyond, coordinates
from meshwright.search.problem import Problem
from tests.cost.build import llama

MODEL = llama(num_hidden_layers=4, hidden_size=1024, intermediate_size=2816, vocab_size=8192)
RECIPE = mw.recipe(global_batch=16, sequence=2048)
PATIENT = 200.0
"""Seconds: no search of these is ended by its limit, however busy the machine is."""
GIVEN = mw.uniform_plan(MODEL, "4xh100", RECIPE, tp=4, sp=True, recompute="full")


def test_one_change_is_the_best_of_all_single_changes() -> None:
    found = mw.plan(MODEL, "4xh100", RECIPE, near=GIVEN, changes=1, gap=0.0, time_limit=PATIENT)
    kept: dict[str, Any] = {
        "tp": 4,
        "pp": 1,
        "cp": 1,
        "ulysses": 1,
        "zero": 0,
        "micro_batch": 1,
        "recompute": "full",
        "schedule": "1f1b",
    }
    for name in kept:
        try:
            others = {each: kept[each] for each in kept if each != name}
            one = mw.plan(MODEL, "4xh100", RECIPE, forbid=("unlike",), **others)
        except PlanError:
            continue  # no other value of it works
        assert found.estimate.step_time_s <= one.estimate.step_time_s * (1 + 1e-9), name
    own = coordinates(Inputs(found.plan, MODEL, mw.cluster("4xh100"), RECIPE))
    given = coordinates(Inputs(GIVEN, MODEL, mw.cluster("4xh100"), RECIPE))
    assert len(given.changes(own)) == 1
    assert len(found.path) == 2


def test_the_path_begins_with_the_given_plan_and_its_gains_lead_to_the_answer() -> None:
    found = mw.plan(MODEL, "4xh100", RECIPE, near=GIVEN, time_limit=PATIENT)
    first, *later = found.path
    assert first.candidate.estimate.step_time_s == mw.estimate(GIVEN, model=MODEL).step_time_s
    pace = first.candidate.estimate.step_time_s
    for step in later:
        pace *= 1 - step.gain
        assert step.candidate.estimate.step_time_s == pytest.approx(pace)
    assert found.path[-1].candidate.plan == found.plan
    assert found.bound <= found.estimate.step_time_s < first.candidate.estimate.step_time_s


def test_a_step_of_the_path_that_is_cut_off_does_not_cut_off_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = near.search

    def cut(problem: Problem, *given: Any) -> Answer:
        found = whole(problem, *given)
        found.stopped = "the time limit of 1 s" if problem.wishes.time_limit == 1.0 else found.stopped
        return found

    monkeypatch.setattr(near, "search", cut)
    found = mw.plan(MODEL, "4xh100", RECIPE, near=GIVEN, changes=2, time_limit=PATIENT)
    assert len(found.path) > 1
    assert found.stopped == ""


def test_near_the_best_plan_there_is_nothing_faster() -> None:
    best = mw.plan(MODEL, "4xh100", RECIPE, gap=0.0, forbid=("unlike",), time_limit=PATIENT).plan
    found = mw.plan(MODEL, "4xh100", RECIPE, near=best, changes=1, forbid=("unlike",), time_limit=PATIENT)
    assert found.plan == best
    assert found.notes == ("no plan within 1 change is faster than the given one",)


def test_what_the_search_cannot_choose_is_estimated_as_it_is_and_named() -> None:
    given = mw.uniform_plan(MODEL, "4xh100", RECIPE, zero=3, shard=2, recompute="full")
    found = mw.plan(MODEL, "4xh100", RECIPE, near=given, changes=1, time_limit=PATIENT)
    assert beyond(given) == ["replicas beside sharding ranks"]
    assert "replicas beside sharding ranks" in found.notes[0]
    assert found.path[0].candidate.estimate.step_time_s == mw.estimate(given, model=MODEL).step_time_s
    assert found.estimate.step_time_s <= found.path[0].candidate.estimate.step_time_s


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"objective": "money"}, "near a plan, its batch and devices stay, and objective would change them"),
        ({"global_batch": "8..16"}, "and global_batch would change them"),
        ({"changes": 0}, "changes counts from 1 on"),
    ],
)
def test_what_cannot_be_is_said(wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=re.escape(said)):
        mw.plan(MODEL, "4xh100", RECIPE, near=GIVEN, **wishes)


def test_the_command_reads_what_the_plan_is_for(tmp_path: Path) -> None:
    written = tmp_path / "given.yaml"
    mw.uniform_plan("gpt2", "2xh100", mw.recipe(global_batch=8, sequence=512), recompute="full").write(written)
    found = CliRunner().invoke(command_line(), ["plan", "--near", str(written), "--changes", "2"])
    assert found.exit_code == 0, found.output
    assert "from the given plan" in found.output
    assert "recompute full → none" in found.output
    twice = CliRunner().invoke(command_line(), ["plan", "--near", str(written), "--seq", "512"])
    assert "says that already; leave it out" in str(twice.exception)


def test_what_no_time_was_left_to_search_has_a_bound_by_its_flops() -> None:
    found = mw.plan(MODEL, "4xh100", RECIPE, near=GIVEN, time_limit=1e-6)
    assert 0 < found.bound <= found.estimate.step_time_s
    assert found.gap > 0
