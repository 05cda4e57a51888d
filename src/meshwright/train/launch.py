"""Persistent forked workers on one machine: functions run on every rank of a gloo process group.

A run on a pool costs about 10 ms where fresh forks cost 0.2 s and spawned processes 10 s (4 ranks, torch 2.13).
Fork safety: the parent imports everything first (`preload`) and runs no multi-threaded operation before it forks;
the workers compute with one thread each.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.distributed as dist

from meshwright.errors import MeshwrightError
from meshwright.train.crew import Crew
from meshwright.train.worker import Emitted, Failed, Message, Returned, Task, emit, pack

__all__ = ["Launched", "WorkerError", "WorkerPool", "WorkerTimeout", "emit", "join_launched", "launched", "preload"]

Result = TypeVar("Result")
OnMessage = Callable[[int, Any], None]

_TICK = 0.1  # seconds between looks at exit codes
_GRACE = 0.1  # seconds for other ranks to tell their failure, once one has told an original one
_GRACE_CONSEQUENCE = 1.0  # the same, while ranks only tell that a peer is gone

_log = logging.getLogger(__name__)


class WorkerError(MeshwrightError):
    """Ranks raised or died; `ranks` are those where it began, the message carries the first remote traceback."""

    def __init__(self, message: str, ranks: Iterable[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class WorkerTimeout(WorkerError):
    """A run took too long; `ranks` are those still running, the message tells where each of them stood."""


def preload() -> None:
    """Import what workers need (torch; Hugging Face's Llama and GPT-2 where installed), so that forks start at once.

    Call it first: it also holds the calling process to one thread, because threads do not survive a fork.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    if importlib.util.find_spec("transformers") is not None:
        for family in ("llama", "gpt2"):
            importlib.import_module(f"transformers.models.{family}.modeling_{family}")


_NAMES = (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID"))
"""What torchrun sets, and what Slurm's srun does."""


class Launched(NamedTuple):
    """This process's place among those that torchrun or srun started."""

    rank: int
    size: int
    local_rank: int


def launched() -> Launched | None:
    """Whether a launcher started this process, and as which; none where it was not, or stands alone without an address
    to meet at.
    """
    found = [next((os.environ[name] for name in names if name in os.environ), None) for names in _NAMES]
    if "MASTER_ADDR" not in os.environ or any(value is None for value in found):
        return None
    return Launched(*(int(value) for value in found if value is not None))


def join_launched(place: Launched, patience: float) -> None:
    """Form the default process group: NCCL where every local rank has a GPU, else gloo. `patience` is how long a
    collective waits for its peers, in seconds.
    """
    gpu = torch.cuda.device_count() > place.local_rank
    if gpu:
        torch.cuda.set_device(place.local_rank)
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=patience),
        device_id=torch.device("cuda", place.local_rank) if gpu else None,
    )


def _set_worker_environment() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # for what a worker starts; itself it obeys torch.set_num_threads
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


class WorkerPool:
    """`size` forked ranks that stay alive between runs; leave the `with` block, or call `close`, to end them.

    What a function leaves behind in its process stays for the next run: random state, default dtype, process groups
    (each costs files and threads). A function may call `dist.destroy_process_group()` on all ranks to release those;
    the next run forms the default group anew. After a failed run the next one starts with fresh processes.
    `group_timeout` is how long a collective waits for its peers, in seconds.
    """

    def __init__(self, size: int, *, group_timeout: float = 30.0) -> None:
        if size < 1:
            raise MeshwrightError(f"WorkerPool: size is {size}, and must be at least 1")
        self.size = size
        self._group_timeout = group_timeout
        self._owner = os.getpid()
        self._runs = 0
        self._closed = False
        self._busy = threading.Lock()
        self._crew: Crew | None = None
        atexit.register(self.close)
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(
        self,
        function: Callable[..., Result],
        *args: Any,
        timeout: float | None = 60.0,
        on_message: OnMessage | None = None,
        **kwargs: Any,
    ) -> list[Result]:
        """Call `function(*args, **kwargs)` on every rank and return the results in rank order.

        Inside it torch.distributed is initialised (gloo). Function, arguments and results are pickled: the function
        must be module-level; tensors are copied. `on_message(rank, event)` receives what ranks `emit`, as it comes;
        without it events are dropped. `timeout` is in seconds, None for no limit.

        Raises WorkerError where a rank raises or dies, WorkerTimeout where the run takes too long. Then, and where
        `on_message` raises or Ctrl-C is pressed, all workers are killed first.
        """
        if not self._busy.acquire(blocking=False):
            raise MeshwrightError("WorkerPool.run: this pool is in a run already; use a second pool")
        try:
            self._runs += 1
            task = _packed(self._runs, function, args, kwargs)
            try:
                return _Run(self._ready_crew(), on_message).finish(task, timeout)
            except BaseException:
                self._kill()
                raise
        finally:
            self._busy.release()

    def signal(self, number: int) -> None:
        """Send a signal to every worker."""
        if self._crew is not None:
            self._crew.signal(number)

    def close(self) -> None:
        """End all workers and wait until they are gone; the pool cannot run again."""
        if os.getpid() != self._owner:
            return  # a forked copy of the parent: the workers are not its children
        self._closed = True
        if self._crew is not None:
            self._crew.farewell()
        self._crew = None
        atexit.unregister(self.close)

    def _ready_crew(self) -> Crew:
        if self._closed:
            raise MeshwrightError("WorkerPool.run: the pool is closed; make a new one")
        if self._crew is not None and (dead := self._crew.dead()):
            _log.warning("%s died while idle; all workers are started anew", _named(dead))
            self._kill()
        return self._crew or self._start()

    def _start(self) -> Crew:
        self._crew = Crew(self.size, self._group_timeout, _set_worker_environment)
        return self._crew

    def _kill(self) -> None:
        if self._crew is not None:
            self._crew.kill()
        self._crew = None


def _packed(number: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    try:
        return pack(Task(number, function, args, kwargs))
    except Exception as error:
        raise MeshwrightError(
            f"WorkerPool.run: {function!r} or its arguments cannot be pickled ({error}); "
            "pass a function defined at the top of a module, and plain data or tensors"
        ) from error


class _Run:
    """One task on a crew: gathers the ranks' answers until all are there, one failed, or time is up."""

    def __init__(self, crew: Crew, on_message: OnMessage | None) -> None:
        self._crew = crew
        self._on_message = on_message
        self._size = len(crew.places)
        self._running = list(range(self._size))
        self._results: dict[int, Any] = {}
        self._failures: dict[int, Failed] = {}
        self._alarm = math.inf  # when the first failure was heard

    def finish(self, task: bytes, timeout: float | None) -> list[Any]:
        """The results in rank order."""
        timeout = math.inf if timeout is None else timeout
        deadline = time.monotonic() + timeout
        self._crew.send(task)
        while self._running and not self._settled() and (left := deadline - time.monotonic()) > 0:
            for rank, message in self._crew.receive(tuple(self._running), min(left, _TICK)):
                self._take(rank, message)
        if self._failures:
            raise self._error()
        if self._running:
            raise self._late(timeout)
        return [self._results[rank] for rank in range(self._size)]

    def _take(self, rank: int, message: Message) -> None:
        match message:
            case Emitted(event):
                if self._on_message is not None:
                    self._on_message(rank, event)
            case Returned(value):
                self._running.remove(rank)
                self._results[rank] = value
            case Failed():
                self._running.remove(rank)
                self._failures[rank] = message
                self._alarm = min(self._alarm, time.monotonic())

    def _settled(self) -> bool:
        """Whether the ranks had their time to tell what went wrong."""
        only_consequences = all(failure.consequence for failure in self._failures.values())
        return time.monotonic() - self._alarm > (_GRACE_CONSEQUENCE if only_consequences else _GRACE)

    def _error(self) -> WorkerError:
        originals = {rank: failure for rank, failure in self._failures.items() if not failure.consequence}
        causes = originals or self._failures
        first = min(causes, key=lambda rank: causes[rank].at)
        lines = self._told(causes) + [f"it stood {line}" for line in self._crew.standing(causes).values()]
        if originals:
            lines += [f"in consequence, {line}" for line in self._told(self._failures, but=originals)]
        if self._running:
            lines.append(f"{_named(self._running)} still running, now killed")
        if causes[first].detail:
            lines += ["", f"{_named([first])}:", causes[first].detail.rstrip()]
        if not originals:  # ranks waited in vain: where are the others?
            lines += self._stacks()
        return WorkerError("\n".join(lines), sorted(causes))

    def _told(self, failures: Mapping[int, Failed], but: Iterable[int] = ()) -> list[str]:
        """A line for each different summary, the earliest first."""
        ranks: dict[str, list[int]] = {}
        for rank in sorted(set(failures).difference(but), key=lambda rank: failures[rank].at):
            ranks.setdefault(failures[rank].summary, []).append(rank)
        return [f"{_named(same)} of {self._size}: {summary}" for summary, same in ranks.items()]

    def _late(self, timeout: float) -> WorkerTimeout:
        lines = [f"{_named(self._running)} of {self._size} still running after {timeout:g} s; all workers were killed"]
        if self._results:
            lines.append(f"{_named(self._results)} had finished")
        return WorkerTimeout("\n".join(lines + self._stacks()), self._running)

    def _stacks(self) -> list[str]:
        """Where the ranks that still run stand, as lines."""
        lines = []
        for rank, stack in self._crew.stacks(self._running).items():
            lines += ["", f"{_named([rank])} stood here:", stack or "(it does not answer)"]
        return lines


def _named(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}"
