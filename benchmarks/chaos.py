"""Processes killed at random, and what comes of it.

    python -m benchmarks.chaos                    # 3 kills in each phase, on the same plan; then on fewer processes
    python -m benchmarks.chaos --seed 7 --kills 1

A random rank of four is killed (SIGKILL) in a phase of a random step: forward, backward, reduction, optimizer, save,
or while the run begins again. Restarted on the same plan, the last parameters and optimizer states must be the
undisturbed run's bit for bit; on two processes under another plan, to 1e-9 in float64. Every rank writes down which
samples it takes for which step: they must be the undisturbed run's, whenever a step is taken again. Prints the seed,
what was killed where, and the verdict; exits with 1 where one fails.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from tests.train.small import job_of, last_saved, run_of

from meshwright.runtime import parallel_model, pipeline
from meshwright.train import checkpoint, optimizers, rank
from meshwright.train.data import Dataset
from meshwright.train.job import Job
from meshwright.train.launch import WorkerError
from meshwright.train.local import run_locally

STEPS, EVERY, PROCESSES, FEWER = 8, 2, 4, 2
NEAR = 1e-9
SHAPE = "sequence in tensor"


class Point(NamedTuple):
    """A function in which a process may die: the module or class that has it, its name."""

    where: Any
    name: str


PHASES = {
    "forward": Point(pipeline._UnderWay, "_forward"),
    "backward": Point(pipeline._UnderWay, "_backward"),
    "reduction": Point(parallel_model, "sum_replicas"),
    "optimizer": Point(optimizers.Stepper, "step"),
    "save": Point(checkpoint, "_written_by"),
    "restart": Point(rank, "_restored"),
}


class Kill(NamedTuple):
    """Who dies where: at the how manieth call of the phase's function on that rank."""

    phase: str
    rank: int
    call: int


def armed(kill: Kill, marker: Path) -> Callable[[], None]:
    """Plant it, to be inherited by forked workers; it goes off once. Returns what takes it away."""
    point = PHASES[kill.phase]
    inner = getattr(point.where, point.name)
    calls = 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        first_start = kill.phase == "restart" and args[1] is None  # there is no checkpoint yet
        if dist.is_initialized() and dist.get_rank() == kill.rank and not marker.exists() and not first_start:
            calls += 1
            if calls == kill.call:
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return inner(*args, **kwargs)

    setattr(point.where, point.name, deadly)
    return lambda: setattr(point.where, point.name, inner)


def noted(folder: Path) -> Callable[[], None]:
    """Let every rank note the samples of each step that it takes. Returns what ends it."""
    inner = Dataset.batch

    def noting(self: Dataset, step: int) -> dict[str, torch.Tensor]:
        with (folder / f"samples-{dist.get_rank()}").open("a") as file:
            file.write(json.dumps([step, self.sample_ids(step)]) + "\n")
        return inner(self, step)

    Dataset.batch = noting  # type: ignore[method-assign]
    return lambda: setattr(Dataset, "batch", inner)


def samples(folder: Path) -> dict[int, list[int]]:
    """Step → the samples that were noted. Raises where a step was taken with others on a rank, or later."""
    found: dict[int, list[int]] = {}
    for path in sorted(folder.glob("samples-*")):
        for line in path.read_text().splitlines():
            step, ids = json.loads(line)
            if found.setdefault(step, ids) != ids:
                raise AssertionError(f"{path}: step {step} has the samples {ids}, and had {found[step]}")
    return found


def apart(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """The largest difference, relative to the largest value of its tensor; 0 where all bits are equal."""
    assert found.keys() == wanted.keys()
    differences = [0.0]
    for name, tensor in wanted.items():
        if not torch.equal(found[name], tensor):
            differences.append(float((found[name] - tensor).abs().max() / tensor.abs().max().clamp(min=1e-30)))
    return max(differences)


def job_in(folder: Path, shape: str, processes: int = PROCESSES, **supervision: Any) -> Job:
    """The run."""
    run = run_of(folder, steps=STEPS, checkpoints={"every": EVERY}, supervision=supervision)
    return job_of(run, shape, processes)


def take(job: Job) -> None:
    """Run a job to its end; where it is asked to stop, so is all this."""
    if run_locally(job, lambda _: None).stopped:
        sys.exit(130)


def restarted(kill: Kill, folder: Path, fewer: str | None) -> Job:
    """A run that is killed and goes on: by the launcher on the same plan, or anew on two processes."""
    job = job_in(folder, SHAPE, restarts=0 if fewer else 2, patience=20.0)
    disarm, listen = armed(kill, folder / "killed"), noted(folder)
    # Who is to die while a run begins again must have died before.
    again = armed(Kill("forward", kill.rank, EVERY + 2), folder / "before") if kill.phase == "restart" else lambda: None
    try:
        if fewer is None:
            take(job)
            return job
        for each in (job, *[job_in(folder, fewer, FEWER)] * 3):
            try:
                take(each)
            except WorkerError:
                continue
            return each
        raise AssertionError("it dies again and again")
    finally:
        again()
        listen()
        disarm()
        assert (folder / "killed").exists(), f"nobody died: {kill}"


def kills(phase: str, count: int, draw: random.Random, fewer: str | None) -> list[Kill]:
    """Random ones that come after the first checkpoint and before the last step."""
    calls = {"save": (2, STEPS // EVERY - 1), "restart": (1, 1)}.get(phase, (EVERY + 2, STEPS))
    ranks = FEWER if phase == "restart" and fewer else PROCESSES
    return [Kill(phase, draw.randrange(ranks), draw.randint(*calls)) for _ in range(count)]


def calm(folder: Path) -> Job:
    """The undisturbed run."""
    job, listen = job_in(folder, SHAPE), noted(folder)
    take(job)
    listen()
    return job


def main() -> int:
    """Kill, go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--phase", choices=list(PHASES), action="append")
    typed = parser.parse_args()
    draw, bad = random.Random(typed.seed), 0
    sys.stdout.write(f"seed {typed.seed}\n")
    with tempfile.TemporaryDirectory() as place:
        undisturbed = Path(place) / "calm"
        wanted, steps = last_saved(calm(undisturbed).folder), samples(undisturbed)
        for fewer in (None, "replicas"):
            how, limit = ("same plan", 0.0) if fewer is None else ("two processes", NEAR)
            for phase in typed.phase or PHASES:
                for number, kill in enumerate(kills(phase, typed.kills, draw, fewer)):
                    folder = Path(place) / f"{how} {phase} {number}"
                    difference = apart(last_saved(restarted(kill, folder, fewer).folder), wanted)
                    alike = samples(folder) == steps
                    bad += difference > limit or not alike
                    sys.stdout.write(
                        f"{how:14} {phase:10} rank {kill.rank} call {kill.call}: apart {difference:.1e}, "
                        f"{'the same' if alike else 'OTHER'} samples\n"
                    )
                    sys.stdout.flush()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
