"""`meshwright plan` as it is typed."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import meshwright as mw
from meshwright.cli import command_line
from meshwright.plan.spec import Plan
from meshwright.search.answer import Progress
from meshwright.search.planner import Search
from meshwright.search.problem import Problem, Wishes

ASKED = ["plan", "--model", "llama-3.1-8b", "--cluster", "8xh100", "--seq", "8192", "--global-batch", "64"]


def test_json_has_the_plan_its_estimate_the_gap_and_what_lost(tmp_path: Path) -> None:
    written = tmp_path / "plan.yaml"
    found = CliRunner().invoke(command_line(), [*ASKED, "--tp", "2", "-o", str(written), "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.output)
    assert {"plan", "estimate", "gap", "search_s", "alternatives"} <= answer.keys()
    assert answer["estimate"].keys() == {"step_time_s", "tokens_per_s", "memory_peak_bytes"}
    assert Plan.read(written) == Plan.from_data(answer["plan"], "the answer")
    assert mw.estimate(written).step_time_s == answer["estimate"]["step_time_s"]


def test_a_person_reads_the_proof_and_why_others_lost() -> None:
    found = CliRunner().invoke(command_line(), ASKED)
    assert found.exit_code == 0, found.output
    assert "nothing of the space takes less than" in found.output
    assert "the best of other kinds" in found.output
    assert re.search(r"^plan +.*dp \d, zero\d( and zero\d)*, ", found.output, re.MULTILINE), "the state is named"


def test_what_the_runtime_does_not_run_is_noted(tmp_path: Path) -> None:
    half = tmp_path / "recipe.yaml"
    mw.recipe(global_batch=8, sequence=512, precision={"compute": "fp16"}).write(half)
    found = CliRunner().invoke(
        command_line(), ["plan", "--model", "gpt2", "--cluster", "1xh100", "--recipe", str(half), "--for", "any"]
    )
    assert found.exit_code == 0, found.output
    assert "Meshwright's own runtime does not run this plan yet" in found.output


def test_ctrl_c_answers_with_the_best_so_far() -> None:
    def interrupt(now: Progress) -> None:
        if now.best is not None:
            raise KeyboardInterrupt

    recipe = mw.recipe(global_batch=512, sequence=8192)
    problem = Problem(mw.model("llama-3.1-70b"), mw.cluster("8x8xh100"), recipe, Wishes())
    found = Search(problem, progress=interrupt).run()
    assert found.stopped == "Ctrl-C"
    assert found.estimate.fits
    assert found.bound <= found.estimate.step_time_s


def test_ctrl_c_before_any_plan_is_ctrl_c() -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    recipe = mw.recipe(global_batch=512, sequence=8192)
    problem = Problem(mw.model("llama-3.1-70b"), mw.cluster("8x8xh100"), recipe, Wishes(memory_limit=6e9))
    with pytest.raises(KeyboardInterrupt):
        Search(problem, progress=interrupt).run()
