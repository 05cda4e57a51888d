"""Step times of many rows under many calibrations: rows are read once, and timed anew by processes that keep them."""

import math
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.calibration import Calibration
from meshwright.cost.estimate import run_step
from meshwright.cost.placement import Placement
from meshwright.plan.rules import Inputs

Floats = NDArray[np.float64]


class Job(NamedTuple):
    """Rows, by number, to be timed under a calibration."""

    calibration: Calibration
    rows: Sequence[int]


class Predictor:
    """A process for each core, each with its share of the rows. Use it in a `with` statement."""

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        self.count = len(inputs)
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("fork" if "fork" in methods else None)
        # Dealt out by the length of their schedules, so that all have about as much to do.
        order = sorted(
            range(self.count), key=lambda row: -inputs[row].plan.micro_batches * len(inputs[row].plan.stages)
        )
        workers = max(1, min(os.cpu_count() or 1, self.count))
        self._shares = [order[first::workers] for first in range(workers)]
        self._pipes: list[Connection] = []
        self._processes = []
        for share in self._shares:
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, {row: inputs[row] for row in share}), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()

    def times(self, jobs: Sequence[Job]) -> list[Floats]:
        """The logarithm of each row's seconds, job by job; not a number for rows that a job does not name."""
        for pipe, share in zip(self._pipes, self._shares, strict=True):
            mine = set(share)
            pipe.send([Job(job.calibration, [row for row in job.rows if row in mine]) for job in jobs])
        found = [np.full(self.count, np.nan) for _ in jobs]
        for pipe in self._pipes:
            for times, (rows, values) in zip(found, pipe.recv(), strict=True):
                times[rows] = values
        return found


def _work(pipe: Connection, inputs: dict[int, Inputs]) -> None:
    """Time rows as long as somebody asks. Ctrl-C is for the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    placements = {row: Placement(each) for row, each in inputs.items()}
    while True:
        try:
            jobs = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send([(job.rows, [_log_seconds(placements[row], job.calibration) for row in job.rows]) for job in jobs])


def _log_seconds(placement: Placement, calibration: Calibration) -> float:
    return math.log(run_step(placement.with_calibration(calibration))[1].seconds)
