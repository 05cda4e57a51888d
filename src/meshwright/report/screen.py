"""Where a report goes: JSON, tables on a terminal, or plain text through a pipe."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.report.blocks import Block
from meshwright.report.plain import plain_text


def show(as_json: bool, data: Callable[[], Any], blocks: Callable[[], Iterable[Block]]) -> None:
    """Print one answer of the command line: its data as JSON, or its blocks for a person.

    Raises MeshwrightError where the output cannot be written. A reader that has gone away (`| head`) is no error.
    """
    if as_json:
        write(json.dumps(data(), indent=2, allow_nan=False) + "\n")
    elif sys.stdout is not None and sys.stdout.isatty():
        from meshwright.report.terminal import print_blocks

        shown = blocks()
        with _output():
            print_blocks(shown)
    else:
        write(plain_text(blocks()))


def write(text: str) -> None:
    """Print text as it stands, all of it now. Raises MeshwrightError."""
    if sys.stdout is None:
        raise MeshwrightError("cannot write the output: standard output is closed")
    with _output():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Meets an output that takes no more: quietly where nobody reads it, else with a MeshwrightError."""
    try:
        yield
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer goes there
        if not isinstance(error, BrokenPipeError):
            raise MeshwrightError(f"cannot write the output: {error.strerror or error}") from None
