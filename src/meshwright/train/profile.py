"""A window of steps under torch's profiler, written for Chrome and Perfetto, one file a rank."""

from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from meshwright.train.job import Job

FOLDER = "profile"


class Window:
    """Records the steps that `logging.profile` names; without it, nothing."""

    def __init__(self, job: Job) -> None:
        self._wanted, self._folder = job.run.logging.profile, job.folder / FOLDER
        self._profiler: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def at(self, step: int) -> None:
        """A step begins."""
        if self._wanted is None:
            return
        if step == self._wanted.first:
            self._profiler = torch.profiler.profile(record_shapes=True, profile_memory=True)
            self._profiler.start()
        elif step == self._wanted.first + self._wanted.steps:
            self._end()

    def _end(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self._folder / f"rank-{dist.get_rank()}.json"))
            self._profiler = None
