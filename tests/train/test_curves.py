"""A whole run learns the same under any plan: its losses, step by step, are one process's."""

from pathlib import Path

import pytest

from meshwright.train.launch import WorkerPool
from tests.train.curves import adamw, losses_of
from tests.train.small import alone, job_of, run_of

EXACT = 1e-9


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("llama", "mixed"),
        ("llama", "zero3"),
        ("llama", "sequence in tensor"),
        ("llama", "ulysses"),
        ("llama", "interleaved"),
        ("vit", "halves"),
    ],
)
def test_losses_under_unlike_plans_are_one_process_s(pool: WorkerPool, tmp_path: Path, model: str, shape: str) -> None:
    run = run_of(tmp_path, model=model, steps=6, schedule={"shape": "cosine", "warm_up": 2, "floor": 0.1})
    wanted, _ = alone(run, adamw)
    found = pool.run(losses_of, job_of(run, shape), timeout=100)[0]
    assert len(found) == 6
    assert found == pytest.approx(wanted, rel=EXACT)
    assert model != "llama" or found[-1] < 0.9 * found[0]  # six steps teach the other nothing yet
