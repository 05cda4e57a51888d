"""The run file: one length, schedules that fit it, overrides that say what is misspelt."""

from pathlib import Path
from typing import Any

import pytest

from meshwright.cli.job import read_run
from meshwright.errors import DocumentError
from meshwright.recipe.overrides import with_overrides
from meshwright.recipe.run import Run

BASE: dict[str, Any] = {"meshwright_run": 1, "model": "gpt2", "recipe": {"global_batch": 4, "sequence": 16}}


def test_tokens_are_as_many_steps_as_reach_them() -> None:
    assert Run.from_data(BASE | {"tokens": 1000}).last_step == 16  # 15.6 of 64
    assert Run.from_data(BASE | {"steps": 7}).last_step == 7


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "give 'steps' or 'tokens'"),
        ({"steps": 3, "tokens": 9}, "give 'steps' or 'tokens'"),
        ({"steps": 9, "schedule": {"shape": "cosine", "decay": 2}}, "only 'wsd' has a decay"),
        ({"steps": 9, "schedule": {"warm_up": 10}}, "longer than the run's 9 steps"),
        ({"steps": 9, "checkpoint": {"every": 2}}, "did you mean 'checkpoints'"),
    ],
)
def test_what_makes_no_run_is_said(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        Run.from_data(BASE | fields)


def test_a_run_reads_what_it_wrote() -> None:
    run = Run.from_data(BASE | {"steps": 9, "logging": {"every": 3}, "data": {"source": "digits"}})
    assert Run.parse(run.to_yaml()) == run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text("")
    (tmp_path / "recipe.yaml").write_text("meshwright_recipe: 1\nglobal_batch: 4\nsequence: 16\n")
    path = tmp_path / "run.yaml"
    path.write_text("meshwright_run: 1\nmodel: gpt2\nplan: plan.yaml\nrecipe: recipe.yaml\nsteps: 9\n")
    return path


def test_files_that_a_run_names_lie_beside_it_and_those_that_are_typed_here(file: Path) -> None:
    run = read_run(file, ["recipe.seed=3", "folder=somewhere"])
    assert (run.plan, run.folder, run.recipe.seed) == (str(file.parent / "plan.yaml"), "somewhere", 3)
    assert read_run(file, ["plan=plan.yaml"]).plan == "plan.yaml"


def test_the_data_of_an_evaluation_lie_beside_the_run_as_what_is_learnt_from(file: Path) -> None:
    (file.parent / "other.txt").write_text("text")
    judged = "evaluation: {every: 3, data: {source: other.txt}}\n"
    file.write_text(file.read_text() + "data: {source: other.txt}\n" + judged)
    run = read_run(file, [])
    assert run.evaluation is not None
    assert run.evaluation.data is not None
    assert run.evaluation.data.source == run.data.source == str(file.parent / "other.txt")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("recipe.optimizer.learning_rte=1", "unknown key 'learning_rte'; did you mean 'learning_rate'"),
        ("stepps=3", "unknown key 'stepps'; did you mean 'steps'"),
        ("steps", "'steps' is no override; write key=value"),
        ("steps=many", "steps: must be a whole number"),
        ("model.name=x", "model.name: there is no 'name' inside of a str"),
    ],
)
def test_an_override_that_is_none_is_said(file: Path, typed: str, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        read_run(file, [typed])


def test_an_override_makes_the_mappings_on_its_way_and_may_take_a_value_away() -> None:
    assert with_overrides({"steps": 3}, ["steps=", "tokens=1e6", "logging.profile.first=2"]) == {
        "steps": None,
        "tokens": 1e6,
        "logging": {"profile": {"first": 2}},
    }
