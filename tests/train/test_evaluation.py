"""A loss without gradients is that of a step, under any plan, and leaves nothing behind."""

from pathlib import Path

import pytest

from meshwright.runtime.parallelize import parallelize
from meshwright.train.build import build_module
from meshwright.train.data import open_data
from meshwright.train.job import Job
from meshwright.train.launch import WorkerPool
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
