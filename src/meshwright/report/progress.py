"""How far a long command has come: a bar on a terminal, once it takes over a second."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_QUIET = 1.0  # seconds in which nothing is shown


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives what is to be called after each of `total` steps."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task, started = bar.add_task(what, total=total), time.monotonic()

    def advance() -> None:
        bar.advance(task)
        if not bar.live.is_started and time.monotonic() - started > _QUIET:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
