"""Whole curves: 200 steps in float64 under five unlike plans, held against a file of one process's losses.

python -m tests.train.curves            # both models; exits with 1 where a loss is not the golden one
python -m tests.train.curves --write    # make the golden files anew, with one process that knows nothing of plans
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from meshwright.recipe.run import Run
from meshwright.train.launch import WorkerPool, preload
from meshwright.train.rank import run_on_rank
from tests.train.small import alone, job_of, run_of

GOLDEN = Path(__file__).parent / "golden"
STEPS, EXACT, LEAST_FALL = 200, 1e-6, 0.4
SHAPES = {"llama": ("mixed", "zero3", "sequence in tensor", "ulysses", "interleaved")}
"""Model → the plans."""


def run_for(model: str, folder: Path, steps: int = STEPS) -> Run:
    """The run whose losses the golden file has the first of."""
    schedule = {"shape": "cosine", "warm_up": 10, "floor": 0.1}
    return run_of(folder, model=model, steps=steps, schedule=schedule, optimizer={"learning_rate": 0.003})


def adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    """As the runs have it."""
    return torch.optim.AdamW(module.parameters(), betas=(0.9, 0.95), weight_decay=0.1, foreach=False)


def losses_of(job: Any) -> list[float]:
    """The loss of each step. Runs on every rank."""
    told: list[dict[str, Any]] = []
    run_on_rank(job, told.append)
    return [event["loss"] for event in told if event["event"] == "step"]


def golden(model: str) -> list[float]:
    """One process's losses."""
    found: list[float] = json.loads((GOLDEN / f"{model}.json").read_text())
    return found


def write(model: str, folder: Path) -> None:
    """Make a golden file."""
    GOLDEN.mkdir(exist_ok=True)
    losses, _ = alone(run_for(model, folder), adamw)
    (GOLDEN / f"{model}.json").write_text(json.dumps(losses, indent=0) + "\n")


def apart(found: list[float], wanted: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--model", choices=list(SHAPES), action="append")
    typed = parser.parse_args()
    preload()
    failed = False
    with tempfile.TemporaryDirectory() as place, WorkerPool(4) as pool:
        for model in typed.model or SHAPES:
            if typed.write:
                write(model, Path(place) / model)
                continue
            wanted = golden(model)
            for shape in SHAPES[model]:
                run = run_for(model, Path(place) / f"{model} {shape}")
                found = pool.run(losses_of, job_of(run, shape), timeout=None)[0]
                difference, fall = apart(found, wanted), 1 - found[-1] / found[0]
                failed |= difference > EXACT or fall < LEAST_FALL
                sys.stdout.write(f"{model:8} {shape:20} apart {difference:.1e}, loss falls by {fall:.0%}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
