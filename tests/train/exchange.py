"""Checkpoints of unlike plans under each other: every number of parameters and optimizer states, bit for bit.

python -m tests.train.exchange      # ten plans on 1 to 4 processes, all 90 pairs; exits with 1 where one differs

Each plan takes a step of its own and saves. Each other one fills what it holds with NaN, loads, and compares every box
that it holds with the whole tensors of the file; what all its ranks hold must be all that the file has.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.runtime.parallelize import parallelize
from meshwright.train import checkpoint
from meshwright.train.build import build_module
from meshwright.train.checkpoint import contents
from meshwright.train.checkpoint_boxes import Stored
from meshwright.train.data import open_data
from meshwright.train.job import Job
from meshwright.train.launch import WorkerPool, preload
from meshwright.train.optimizers import Stepper
from tests.train.small import PROCESSES, job_of, run_of, saved

PLANS: Mapping[str, int] = {
    "zero3": PROCESSES,
    "tensor": PROCESSES,
    "pipeline": PROCESSES,
    "sequence in tensor": PROCESSES,
    "ring": PROCESSES,
    "interleaved": PROCESSES,
    "mixed": PROCESSES,
    "ulysses": PROCESSES,
    "zero1": 2,
    "replicas": 1,
}
"""Plan → processes: ten that are unlike each other."""


def started(job: Job) -> tuple[Any, Stepper]:
    """A model under its plan, and its optimizer."""
    parallel = parallelize(build_module(job.run), job.inputs)
    return parallel, Stepper(parallel, job.run.recipe.optimizer)


def save_all(jobs: Mapping[str, Job], folder: Path) -> None:
    """One step under each plan, saved under its name. Runs on every rank."""
    for name, job in jobs.items():
        parallel, stepper = started(job)
        parallel.forward_backward(open_data(job.run.data, job.run.recipe, job.inputs.model).batch(0))
        stepper.step(0.01)
        checkpoint.write(folder / name, contents(parallel, stepper), {"step": 1})


def load_all(jobs: Mapping[str, Job], sources: Mapping[str, list[str]], folder: Path) -> list[str]:
    """What differs where each plan loads what its `sources` saved. Runs on every rank."""
    wrong = []
    whole = {source: saved(folder / source) for source in sorted({each for name in jobs for each in sources[name]})}
    for name, job in jobs.items():
        held = contents(*started(job))
        for source in sources[name]:
            for stored in held.values():
                for piece in stored.pieces:
                    piece.tensor.fill_(torch.nan)
            checkpoint.check(folder / source)
            checkpoint.read(folder / source, held)
            wrong += [f"{source} under {name}: {each}" for each in _differences(held, whole[source])]
    return wrong


def _differences(held: Mapping[str, Stored], whole: Mapping[str, Tensor]) -> list[str]:
    """The tensors of which this rank's boxes are not the file's, or that the ranks do not hold all of."""
    seen = {name: torch.zeros(tensor.shape, dtype=torch.uint8) for name, tensor in whole.items()}
    wrong = []
    for name, stored in held.items():
        own = name.partition("/")[2]
        for piece in stored.pieces:
            piece.of(seen[own]).fill_(1)
            if not _same_bits(piece.tensor, piece.of(whole[own])):
                wrong.append(name)
    every = torch.cat([each.reshape(-1) for each in seen.values()])
    dist.all_reduce(every, dist.ReduceOp.MAX)
    return wrong if bool(every.all()) else [*wrong, "there is more than its ranks hold"]


def _same_bits(left: Tensor, right: Tensor) -> bool:
    left, right = left.contiguous().reshape(-1), right.contiguous().reshape(-1)
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


@contextlib.contextmanager
def pools_for(plans: Mapping[str, int], pool: WorkerPool | None = None) -> Iterator[dict[int, WorkerPool]]:
    """Workers for each number of processes, of which `pool` may be some."""
    with contextlib.ExitStack() as stack:
        made = {} if pool is None else {pool.size: pool}
        for size in sorted(set(plans.values()) - made.keys()):
            made[size] = stack.enter_context(WorkerPool(size))
        yield made


def exchange(
    plans: Mapping[str, int], sources: Mapping[str, list[str]], folder: Path, pool: WorkerPool | None = None, **run: Any
) -> list[str]:
    """What differs where each plan loads from its sources; `run` is what `run_of` takes."""
    wanted = run_of(folder, **run)
    with pools_for(plans, pool) as pools:
        jobs: dict[int, dict[str, Job]] = {}
        for name, size in plans.items():
            jobs.setdefault(size, {})[name] = job_of(wanted, name, size)
        for size, own in jobs.items():
            pools[size].run(save_all, own, folder, timeout=200)
        return [
            each
            for size, own in jobs.items()
            for found in pools[size].run(load_all, own, sources, folder, timeout=600)
            for each in found
        ]


def main() -> int:
    """All pairs."""
    preload()
    start = time.perf_counter()
    sources = {name: [other for other in PLANS if other != name] for name in PLANS}
    with tempfile.TemporaryDirectory() as place:
        wrong = exchange(PLANS, sources, Path(place))
        tensors = saved(Path(place) / next(iter(PLANS)))
    sys.stdout.writelines(f"{each}\n" for each in wrong)
    pairs, numbers = sum(map(len, sources.values())), sum(each.numel() for each in tensors.values())
    sys.stdout.write(
        f"{pairs} pairs of {len(PLANS)} plans, {len(tensors)} tensors of {numbers:,} numbers: {len(wrong)} differ; "
        f"{time.perf_counter() - start:.0f} s\n"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
