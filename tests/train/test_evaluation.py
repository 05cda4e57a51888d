"""A loss without gradients is that of a step, under any plan, and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import MeshwrightError
from meshwright.runtime.parallelize import parallelize
from meshwright.train.build import build_module
from meshwright.train.data import open_data
from meshwright.train.job import Job
from meshwright.train.launch import WorkerPool
from meshwright.train.rank import run_on_rank
from tests.train.small import job_of, run_of


def judged_and_learnt(jobs: list[Job]) -> list[tuple[float, float, float, bool]]:
    """The loss of a batch before a step's, the step's, the same one without the first; and whether gradients came of
    the first. Runs on every rank.
    """
    found = []
    for job in jobs:
        data = open_data(job.run.data, job.run.recipe, job.inputs.model)
        parallel = parallelize(build_module(job.run), job.inputs)
        before = float(parallel.evaluate(data.batch(0)))
        gradients = any(parameter.grad is not None for parameter in parallel.module.parameters())
        other = parallelize(build_module(job.run), job.inputs)
        step, alone = (float(each.forward_backward(data.batch(0))) for each in (parallel, other))
        found.append((before, step, alone, gradients))
    return found


@pytest.mark.timeout(200)
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_a_loss_that_is_not_learnt_from_is_a_step_s_without_dropout(
    pool: WorkerPool, tmp_path: Path, model: str
) -> None:
    shapes = ["zero2", "interleaved"]
    run = run_of(tmp_path, model=model)
    for before, step, alone, gradients in pool.run(
        judged_and_learnt, [job_of(run, shape) for shape in shapes], timeout=150
    )[0]:
        assert not gradients
        assert step == alone
        if model == "llama":
            assert before == pytest.approx(step, rel=1e-12)
        else:  # GPT-2 drops
            assert before == pytest.approx(step, rel=0.1)
            assert before != step


def judged_by_a_run(job: Job) -> list[float]:
    """The losses of evaluations that a run tells. Runs on every rank."""
    told: list[dict[str, Any]] = []
    run_on_rank(job, told.append)
    return [event["loss"] for event in told if event["event"] == "evaluation"]


@pytest.mark.timeout(120)
def test_data_to_judge_by_have_the_tokenizer_that_is_learnt_from_the_run_s(pool: WorkerPool, tmp_path: Path) -> None:
    (tmp_path / "judged.txt").write_text("def judged(text: str) -> float:\n    return 0.0\n" * 40)
    judged = {"source": str(tmp_path / "judged.txt")}
    learnt = {"limit": 3, "tokenizer": {"vocabulary": 259}}
    run = run_of(tmp_path, steps=1, data=learnt, evaluation={"every": 1, "batches": 1, "data": judged})
    assert len(pool.run(judged_by_a_run, job_of(run), timeout=100)[0]) == 1
    kept = json.loads((tmp_path / "run" / "tokenizer" / "tokenizer.json").read_text())
    assert len(kept["model"]["vocab"]) == 259
    assert len(list((tmp_path / "run" / "tokens").iterdir())) == 2


def test_data_to_judge_by_with_another_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeshwrightError, match=r"evaluation.data.tokenizer.*of what is learnt"):
        run_of(tmp_path, evaluation={"every": 1, "data": {"tokenizer": {"vocabulary": 400}}})
