"""The bar of long commands."""

import io
import sys
import time

import pytest

from meshwright.report.progress import progress


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the bar sees."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    return now


def test_a_pipe_sees_nothing_however_long_it_takes(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress("rows", 2) as advance:
        clock[0] += 60
        advance()
    assert sys.stderr.getvalue() == ""


def test_a_terminal_sees_a_bar_once_a_second_has_passed(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("rows", 3) as advance:
        advance()
        assert terminal.getvalue() == ""
        clock[0] += 1.5
        advance()
        assert "rows" in terminal.getvalue()
