"""One generation of forked worker processes, seen from their parent: their pipes, their deaths, their end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from meshwright.train.keeper import keep
from meshwright.train.worker import Failed, Message, Place, become_worker, readable_stack, serve

_GOODBYE = 1.0  # seconds for idle workers to leave by themselves
_STACK_WAIT = 1.0  # seconds for hung workers to write their stacks


class Crew:
    """`size` worker processes, each with a pipe. Whoever makes one must end it: `farewell` or `kill`.

    `prepare` runs first in each worker.
    """

    def __init__(self, size: int, group_timeout: float, prepare: Callable[[], None]) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="meshwright-"))
        self.places = [Place(rank, size, self.scratch, group_timeout) for rank in range(size)]
        self._keeper: ForkProcess | None = None
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        try:
            self._keeper = _process(keep, os.getpid(), self.scratch)
            self._start(self._keeper)
            for place in self.places:
                self._fork(place, prepare)
        except BaseException:
            self.kill()
            raise

    def _fork(self, place: Place, prepare: Callable[[], None]) -> None:
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        self._pipes.append(ours)
        self._processes.append(_process(_live, place, theirs, self._pipes, prepare))
        self._start(self._processes[-1])
        theirs.close()

    def _start(self, process: ForkProcess) -> None:
        """Fork a process into the group that the keeper leads."""
        with warnings.catch_warnings():  # Python 3.12 counts the idle threads that numpy starts on import
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            process.start()
        leader = self._keeper or process
        with contextlib.suppress(OSError):  # it may be dead already
            os.setpgid(process.pid or 0, leader.pid or 0)

    def send(self, data: bytes) -> None:
        """Give every rank a task; `receive` tells of those that are dead."""
        for pipe in self._pipes:
            with contextlib.suppress(ConnectionError):
                pipe.send_bytes(data)

    def receive(self, ranks: Iterable[int], seconds: float) -> Iterator[tuple[int, Message]]:
        """At most one message of each rank that has one within `seconds`; a death counts as one."""
        pipes = {rank: self._pipes[rank] for rank in ranks}
        ready = wait(list(pipes.values()), seconds)
        for rank, pipe in pipes.items():
            if pipe in ready:
                yield rank, self._read(rank)
            elif self._processes[rank].exitcode is not None and not pipe.poll():
                yield rank, self._death(rank)  # its children hold the pipe open

    def _read(self, rank: int) -> Message:
        try:
            data = self._pipes[rank].recv_bytes()
        except (EOFError, ConnectionError):
            return self._death(rank)
        try:
            message: Message = pickle.loads(data)
        except Exception as error:  # noqa: BLE001  a class may do anything while it is unpickled
            return Failed(f"its answer cannot be unpickled in the parent: {error!r}", "", time.monotonic())
        return message

    def _death(self, rank: int) -> Failed:
        self._processes[rank].join(_GOODBYE)
        return Failed(_exit_summary(self._processes[rank].exitcode), self._stack(rank), time.monotonic())

    def _stack(self, rank: int) -> str:
        path = self.places[rank].stack
        return readable_stack(path.read_text(errors="replace")) if path.exists() else ""

    def signal(self, number: int) -> None:
        """Send a signal to every rank that lives."""
        for process in self._processes:
            if process.exitcode is None and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def standing(self, ranks: Iterable[int]) -> dict[int, str]:
        """Where these ranks stood last, as far as they told; a rank that told nothing is left out."""
        told = {rank: self.places[rank].slate.read() for rank in ranks}
        return {rank: line for rank, line in told.items() if line}

    def dead(self) -> list[int]:
        """The ranks whose process has ended."""
        return [rank for rank, process in enumerate(self._processes) if process.exitcode is not None]

    def stacks(self, ranks: Iterable[int]) -> dict[int, str]:
        """Where these ranks stand: what they write within a second; empty for one that cannot."""
        before: dict[int, str] = {}
        stacks = dict.fromkeys(ranks, "")
        for rank in stacks:
            with contextlib.suppress(OSError):
                os.kill(self._processes[rank].pid or 0, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_WAIT
        while not (all(stacks.values()) and stacks == before) and time.monotonic() < deadline:
            time.sleep(_STACK_WAIT / 20)
            before, stacks = stacks, {rank: self._stack(rank) for rank in stacks}
        return stacks

    def farewell(self) -> None:
        """Close the pipes, which ends idle workers, and kill those that stay."""
        try:
            for pipe in self._pipes:
                pipe.close()
            deadline = time.monotonic() + _GOODBYE
            for process in self._processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            self.kill()

    def kill(self) -> None:
        """End every process with its children, wait for it, and remove the scratch directory."""
        started = [each for each in (self._keeper, *self._processes) if each is not None and each.pid is not None]
        if self._keeper in started:
            _kill_group(started[0])
        for process in started:
            process.kill()  # one that left the group too
        for process in started:
            process.join()
            with contextlib.suppress(ValueError):  # a program that ignores SIGCHLD never learns of an end
                process.close()
        self._keeper = None
        self._processes.clear()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _process(target: Callable[..., None], *args: Any) -> ForkProcess:
    # Not daemonic: a worker may have children of its own (a DataLoader's); `kill` ends those too.
    return multiprocessing.get_context("fork").Process(target=target, args=args)


def _live(place: Place, pipe: Connection, parents_pipes: list[Connection], prepare: Callable[[], None]) -> None:
    for other in parents_pipes:
        other.close()  # inherited by the fork; held open, it would hide the parent's end from its worker
    prepare()
    become_worker(place)
    serve(place, pipe)


def _kill_group(leader: ForkProcess) -> None:
    """Kill a process and the group that it leads. A number that is free and taken again is somebody else's."""
    pid = leader.pid or 0
    reaped = leader.exitcode is not None
    leader.kill()
    with contextlib.suppress(OSError):
        if not (reaped and _exists(pid)):
            os.killpg(pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _exit_summary(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"
