"""Being asked to stop: Ctrl-C and SIGTERM (Slurm's, Kubernetes') are heard, and obeyed at the end of a step."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, the first of these signals sets `wanted`; a second one ends the process as it usually does.

    Only a process's main thread hears signals; elsewhere nothing is ever wanted.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is signal.SIG_IGN:
                continue  # a worker leaves Ctrl-C to its parent
            try:
                signal.signal(number, self._hear)
            except ValueError:  # not the main thread
                break
            self._before[number] = before
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        signal.signal(number, self._before[signal.Signals(number)])
