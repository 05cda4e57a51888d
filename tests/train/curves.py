"""Whole curves: 200 steps under five unlike plans, of a language model and of an image classifier.

python -m tests.train.curves            # both models, in both dtypes; exits with 1 where a curve is another one
python -m tests.train.curves --write    # make the golden files anew, with one process that knows nothing of plans

In float64 every loss is the golden file's. In float32 the largest difference from one process is held against the
largest of one process between any two of four orders of summation: as it is, samples backwards, matrix products in two
pieces, both in four.
"""

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import combinations, starmap
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from meshwright.recipe.run import Run
from meshwright.train.launch import WorkerPool, preload
from meshwright.train.rank import run_on_rank
from tests.parity.harness import SplitProducts
from tests.train.small import alone, job_of, run_of

GOLDEN = Path(__file__).parent / "golden"
STEPS, EXACT, LEAST_FALL = 200, 1e-6, 0.4
SHAPES = {
    "llama": ("mixed", "zero3", "sequence in tensor", "ulysses", "interleaved"),
    "vit": ("zero3", "halves", "tensor", "pipeline", "interleaved"),
}
"""Model → the plans."""
DTYPES = ("float64", "float32")
_BATCH = {"llama": 8, "vit": 32}
_SINGLE = {
    "recipe": {"precision": {"compute": "fp32", "reduce": "fp32", "master": None}},
    "optimizer": {"state": "fp32"},
}
"""What a run in float32 has in place of one in float64."""


def run_for(model: str, folder: Path, *, single: bool = False) -> Run:
    """The run whose losses the golden file has, or the same in float32."""
    other: dict[str, Any] = _SINGLE if single else {"recipe": {}, "optimizer": {}}
    return run_of(
        folder,
        model=model,
        steps=STEPS,
        schedule={"shape": "cosine", "warm_up": 10, "floor": 0.1},
        optimizer={"learning_rate": 0.003} | other["optimizer"],
        recipe={"global_batch": _BATCH[model]} | other["recipe"],
    )


def adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    """As the runs have it."""
    return torch.optim.AdamW(module.parameters(), betas=(0.9, 0.95), weight_decay=0.1, foreach=False)


def losses_of(job: Any) -> list[float]:
    """The loss of each step. Runs on every rank."""
    told: list[dict[str, Any]] = []
    run_on_rank(job, told.append)
    return [event["loss"] for event in told if event["event"] == "step"]


class Order(NamedTuple):
    """An order of summation in one process."""

    backwards: bool = False
    pieces: int = 1


ORDERS = (Order(), Order(backwards=True), Order(pieces=2), Order(backwards=True, pieces=4))
"""One for each rank of a pool; the first is the usual one."""


def alone_in(orders: tuple[Order, ...], run: Run) -> list[float]:
    """One process's losses, each rank by itself in an order of its own."""
    order = orders[dist.get_rank()]
    with SplitProducts(order.pieces) if order.pieces > 1 else nullcontext():
        return alone(run, adamw, backwards=order.backwards)[0]


def golden(model: str) -> list[float]:
    """One process's losses in float64."""
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


class Found(NamedTuple):
    """A curve beside what it was held against."""

    shape: str
    apart: float
    limit: float
    fall: float


def curves(pool: WorkerPool, model: str, folder: Path, *, single: bool) -> Iterator[Found]:
    """Each plan's curve, held against one process's."""
    if single:
        orders = pool.run(alone_in, ORDERS, run_for(model, folder / model, single=True), timeout=None)
        wanted, limit = orders[0], max(starmap(apart, combinations(orders, 2)))
    else:
        wanted, limit = golden(model), EXACT
    for shape in SHAPES[model]:
        run = run_for(model, folder / f"{model} {shape} {single}", single=single)
        losses = pool.run(losses_of, job_of(run, shape), timeout=None)[0]
        yield Found(shape, apart(losses, wanted), limit, 1 - losses[-1] / losses[0])


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--model", choices=list(SHAPES), action="append")
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    typed = parser.parse_args()
    preload()
    failed = False
    with tempfile.TemporaryDirectory() as place:
        if typed.write:
            for model in typed.model or SHAPES:
                write(model, Path(place) / model)
            return 0
        importlib.import_module("sklearn.datasets")  # before the forks: it takes long where much else runs
        with WorkerPool(len(ORDERS), group_timeout=600) as pool:
            for model in typed.model or SHAPES:
                for dtype in typed.dtype or DTYPES:
                    for each in curves(pool, model, Path(place), single=dtype == "float32"):
                        failed |= each.apart > each.limit or each.fall < LEAST_FALL
                        sys.stdout.write(
                            f"{model:6} {dtype} {each.shape:20} apart {each.apart:.1e} (limit {each.limit:.1e}), "
                            f"loss falls by {each.fall:.0%}\n"
                        )
                        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
