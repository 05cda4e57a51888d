"""The child side of a worker pool: a forked process that runs, as one rank, what its parent sends (see `launch`)."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from meshwright.errors import MeshwrightError
from meshwright.runtime.failure import LISTENER

# What gloo and its store say on a rank that merely waited for another one (torch 2.13, November 2026).
_PEER_IS_GONE = re.compile(
    "Connection (closed|reset) by peer|Broken pipe|Application timeout caused pair closure"
    "|Timed out waiting [0-9]+ms|[Tt]imeout waiting for key"
)

_SLATE = 1024  # bytes of a line


class Slate:
    """A line that a worker writes and its parent reads, even after the worker was killed: memory that both have."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLATE)

    def write(self, line: str) -> None:
        """Put a line in the place of the one before."""
        written = line.encode()[: _SLATE - 1]
        self._memory[: len(written) + 1] = written + b"\0"

    def read(self) -> str:
        """The line; empty where none was written."""
        return self._memory[:].partition(b"\0")[0].decode(errors="replace")


@dataclass(frozen=True)
class Place:
    """Where one worker stands: its rank, the world size, the pool's directory, seconds until a collective gives up."""

    rank: int
    size: int
    scratch: Path
    group_timeout: float
    slate: Slate = field(default_factory=Slate)

    @property
    def stack(self) -> Path:
        """The file that receives this worker's Python stack, on SIGUSR1 or on a crash."""
        return self.scratch / f"stack-{self.rank}"


@dataclass(frozen=True)
class Task:
    """One run of the pool, as every rank receives it."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Emitted:
    """A progress event that a rank sent during a run."""

    value: Any


@dataclass(frozen=True)
class Returned:
    """The result of a run on one rank."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """How a rank failed: one line, the traceback, and whether another rank's failure explains it."""

    summary: str
    detail: str
    at: float  # time.monotonic(), one clock for all processes of a machine
    consequence: bool = False


Message = Emitted | Returned | Failed


class _Outbox:
    """The way to the parent; safe to use from several threads. A process is one worker, or none."""

    of_this_process: ClassVar[_Outbox | None] = None

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def post(self, data: bytes) -> None:
        with self._lock:
            self._connection.send_bytes(data)


def emit(event: object) -> None:
    """Send a picklable progress event to the parent's `on_message(rank, event)`, in order, during a run.

    Raises MeshwrightError outside a function that a WorkerPool runs.
    """
    outbox = _Outbox.of_this_process
    if outbox is None:
        raise MeshwrightError("emit() has nobody to tell: it works only inside a function that a WorkerPool runs")
    outbox.post(pack(Emitted(event)))


def pack(message: object) -> bytes:
    """Pickle plainly: a tensor travels as its bytes, where multiprocessing's pickler would pass a file handle."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def become_worker(place: Place) -> None:
    """Make the freshly forked process a quiet worker: one thread, no Ctrl-C, a file for its stack."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if sys.platform == "linux":
        # gloo's threads fight the workers for the cores: 4 KB all_reduce on 4 ranks and 2 cores takes 7-11 ms under
        # SCHED_OTHER, 1-2.5 ms under SCHED_BATCH (measured, November 2026). A real-time class of the parent stays.
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    stack = os.open(place.stack, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # stays open as long as the process
    faulthandler.enable(stack)
    faulthandler.register(signal.SIGUSR1, stack)
    LISTENER.set(place.slate.write)


def serve(place: Place, connection: Connection) -> None:
    """Answer tasks until the parent closes the pipe or is gone."""
    outbox = _Outbox.of_this_process = _Outbox(connection)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            answer = _answer(place, connection.recv_bytes())
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            outbox.post(answer)


def _answer(place: Place, data: bytes) -> bytes:
    try:
        task: Task = pickle.loads(data)
        place.slate.write("")
        if not dist.is_initialized():
            _join(place, task)
        return pack(Returned(task.function(*task.args, **task.kwargs)))
    except BaseException as error:  # noqa: BLE001  it is the parent's to judge, sys.exit too
        return pack(_failed(error))


def _join(place: Place, task: Task) -> None:
    """Form the process group: on the first run, and after a run that destroyed it."""
    meeting = (place.scratch / f"store-{task.number}").as_uri()
    timeout = timedelta(seconds=place.group_timeout)
    dist.init_process_group("gloo", init_method=meeting, rank=place.rank, world_size=place.size, timeout=timeout)


def _failed(error: BaseException) -> Failed:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # the reader wants the function, not this file
    detail = "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    summary = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    origin = _origin(error)
    consequence = isinstance(origin, RuntimeError) and _PEER_IS_GONE.search(str(origin)) is not None
    return Failed(summary, detail, time.monotonic(), consequence)


def _origin(error: BaseException) -> BaseException:
    """The first exception of a chain: a lost peer that was wrapped, or the bug whose clean-up lost a peer."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error if before is None else _origin(before)


def readable_stack(dump: str) -> str:
    """A faulthandler dump without the frames below the task (this file, multiprocessing, the program that forked)."""
    lines: list[str] = []
    inside = True
    for line in dump.splitlines():
        if not line.startswith("  File"):
            inside = True
        elif re.search(rf'"{re.escape(__file__)}", line \d+ in _answer$', line):
            inside = False
        if inside:
            lines.append(line)
    return "\n".join(lines).strip()
