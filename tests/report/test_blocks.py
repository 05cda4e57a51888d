"""Blocks as plain text and on a terminal: the same words, aligned; nothing in them is obeyed by a terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from meshwright.report import terminal
from meshwright.report.blocks import Facts, Lines, table
from meshwright.report.plain import plain_text

FACTS = Facts("a plan", (("model", "gpt2"), ("devices", "8")))
TABLE = table(
    "layers", "span | >parameters", [("embed", "39"), ("decoder.0-11", "7,087,872"), ("all", "7,087,911")], total=True
)
LINES = Lines("", ("first", "second"), "bad")


def test_plain_text_aligns_words_left_and_numbers_right() -> None:
    assert plain_text([FACTS, TABLE, LINES]) == (
        "a plan\n"
        "model    gpt2\n"
        "devices  8\n"
        "\n"
        "layers\n"
        "span          parameters\n"
        "embed                 39\n"
        "decoder.0-11   7,087,872\n"
        "all            7,087,911\n"
        "\n"
        "first\n"
        "second\n"
    )


def test_plain_text_never_wraps_nor_cuts() -> None:
    long = "word " * 100
    assert plain_text([table("", "a | b", [(long, long)])]).splitlines()[1].count("word") == 200


def test_what_a_terminal_would_obey_is_written_out() -> None:
    shown = plain_text([Facts("\x1b[31mred", (("a\nb", "\x07"),)), Lines("", ("\ud800",))])
    assert shown == "\\x1b[31mred\na\\nb  \\x07\n\n\\ud800\n"


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int, *, no_color: bool = False) -> str:
    """What `print_blocks` prints on a terminal of a width."""
    out = io.StringIO()

    def console(**options: object) -> Console:
        settings = {"color_system": "standard"} | options
        return Console(file=out, force_terminal=True, width=width, no_color=no_color, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(terminal, "Console", console)
    terminal.print_blocks([FACTS, TABLE, LINES, table("", "name | source", [("x" * 20, "far and wide " * 5)])])
    return out.getvalue()


def test_a_terminal_gets_the_same_words_in_bold_and_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown_on_a_terminal(monkeypatch, 80)
    assert "\x1b[1m" in text
    assert "\x1b[1;31m" in text
    for word in ("a plan", "gpt2", "decoder.0-11", "7,087,872", "first"):
        assert word in text


def test_no_color_leaves_nothing_but_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in shown_on_a_terminal(monkeypatch, 80, no_color=True)


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_no_width_of_a_terminal_loses_a_word(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = shown_on_a_terminal(monkeypatch, width, no_color=True)
    assert text.count("far") == 5
    assert "x" * 20 in text.replace("\n", "")
    assert "…" not in text


def test_markup_in_a_name_is_only_text(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(terminal, "Console", lambda **_: Console(file=out, width=80))
    terminal.print_blocks([Facts("[red]x[/red]", (("[bold]", ":smile:"),))])
    assert "[red]x[/red]" in out.getvalue()
    assert "[bold]" in out.getvalue()
    assert ":smile:" in out.getvalue()


def test_reports_print_nowhere_but_in_one_place() -> None:
    """Only `screen` and `terminal` know of standard output."""
    for file in Path(terminal.__file__).parent.glob("*.py"):
        if file.name not in ("screen.py", "terminal.py"):
            assert "sys.stdout" not in file.read_text(), file
