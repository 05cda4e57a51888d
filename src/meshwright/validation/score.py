"""Rows predicted, and each prediction beside what was measured."""

import math
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.cost.estimate import Estimate, estimate_plan
from meshwright.cost.footprint import Footprint
from meshwright.cost.verdict import MemoryVerdict
from meshwright.plan.rules import Inputs
from meshwright.validation.assumed import recompute_unknown, with_full_recompute
from meshwright.validation.described import describe_plan
from meshwright.validation.frameworks import framework_of
from meshwright.validation.memory_kinds import figure_of
from meshwright.validation.rows import Measured
from meshwright.validation.setting import setting_of
from meshwright.validation.unusable import Unusable

_ALONE = 16  # rows that one process has done before others could be started
_AT_ONCE = 8  # rows that a process is handed


class Task(NamedTuple):
    """A row to predict, and what devices reach by."""

    row: Measured
    calibration: Calibration | None = None
    """None: the public one."""


class Predicted(NamedTuple):
    """What the estimate says of a row."""

    seconds: float
    parts: dict[str, float]
    """Seconds of the busiest group by what it does; they add up."""
    footprint: Footprint
    """Of the group that is likeliest to run out of memory."""
    capacity: float
    running_out: float
    """The probability that the fullest device or host has too little memory."""
    word: str
    """Of the verdict: `fits`, `may not fit` or `does not fit`."""
    plan: str
    """The plan in a line."""
    full_recompute: float | None = None
    """Seconds with full recompute, where the row does not say what is recomputed."""


@dataclass(frozen=True)
class Scored:
    """A row with its prediction, or with the reason why there is none."""

    row: Measured
    predicted: Predicted | None = None
    reason: str = ""
    device: str = ""
    """The catalogue's name."""
    family: str = ""
    lab: str = ""

    @property
    def used(self) -> bool:
        """Whether it was predicted."""
        return self.predicted is not None

    @property
    def timed(self) -> bool:
        """Whether it has a time to compare with; what ran out of memory has none."""
        return self.used and self.row.seconds is not None and not self.row.ran_out

    @property
    def error(self) -> float | None:
        """Of the step time: predicted over measured, less 1."""
        measured = self.row.seconds
        return self.predicted.seconds / measured - 1 if self.predicted and self.timed and measured else None

    @property
    def log_error(self) -> float | None:
        """The logarithm of predicted over measured: as far from 0 for a half as for the double."""
        return None if self.error is None else math.log1p(self.error)

    @property
    def predicted_memory(self) -> float | None:
        """The middle of the figure that the source's kind of memory figure is compared with."""
        if self.predicted is None:
            return None
        figure = figure_of(self.row.text("mem_kind"))
        return None if figure is None else getattr(self.predicted.footprint, figure).middle

    @property
    def memory_error(self) -> float | None:
        """Of peak memory: predicted over measured, less 1."""
        measured, predicted = self.row.memory_bytes, self.predicted_memory
        return predicted / measured - 1 if measured and predicted is not None and not self.row.ran_out else None

    def scaled(self, factor: float) -> "Scored":
        """The same with all predicted times multiplied."""
        if self.predicted is None:
            return self
        full = self.predicted.full_recompute
        parts = {part: factor * seconds for part, seconds in self.predicted.parts.items()}
        changed = self.predicted._replace(
            seconds=factor * self.predicted.seconds, parts=parts, full_recompute=full and factor * full
        )
        return replace(self, predicted=changed)


def score(task: Task) -> Scored:
    """Predict one row. A fault of ours says which row it met."""
    row, calibration = task
    try:
        framework = framework_of(row)
        known = Scored(row, family=framework.family, lab=framework.lab)
        try:
            inputs = setting_of(row)
        except Unusable as error:
            return replace(known, reason=str(error))
        predicted = _predicted(inputs, estimate_plan(inputs, calibration))
        if recompute_unknown(row):
            full = estimate_plan(setting_of(with_full_recompute(row)), calibration)
            predicted = predicted._replace(full_recompute=full.step_time_s)
        return replace(known, predicted=predicted, device=inputs.cluster.pools[0].device)
    except Exception as error:
        error.add_note(f"while scoring {row.place}")
        raise


def _predicted(inputs: Inputs, found: Estimate) -> Predicted:
    tight = max(found.memory, key=lambda each: (each.out_of_memory, each.footprint.device.middle / each.capacity))
    verdict = MemoryVerdict(found.memory, found.hosts)
    return Predicted(
        seconds=found.step_time_s,
        parts={part: seconds for part, seconds in found.parts.items() if seconds},
        footprint=tight.footprint,
        capacity=tight.capacity,
        running_out=max(each.out_of_memory for each in verdict.tightest),
        word=verdict.word,
        plan=describe_plan(inputs.plan),
    )


def score_rows(tasks: Sequence[Task]) -> Iterator[Scored]:
    """Predict rows on all cores, in the order in which they are given, each as soon as those before it are done."""
    workers = min(os.cpu_count() or 1, len(tasks) // _ALONE)
    if workers < 2:
        yield from map(score, tasks)
        return
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else None)
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts)
    try:
        yield from executor.map(score, tasks, chunksize=_AT_ONCE)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that shows the results: workers end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
