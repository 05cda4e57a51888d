"""What a report is made of: facts, tables and lines. They hold text alone, and say nothing of how it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "good", "bad", "warning"]


@dataclass(frozen=True)
class Facts:
    """A heading, and one value for each name."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """A heading, columns by name and rows of text. The columns whose place is in `right` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    total: bool = False
    """True where the last row sums up the others."""


@dataclass(frozen=True)
class Lines:
    """Sentences, one a line, under a heading that may be empty."""

    title: str
    lines: tuple[str, ...]
    tone: Tone = "plain"


Block = Facts | Table | Lines


def table(title: str, columns: str, rows: Sequence[tuple[str, ...]], *, total: bool = False) -> Table:
    """A table whose columns are written 'name | >number': '>' stands before those that align on the right."""
    names = [name.strip() for name in columns.split("|")]
    right = frozenset(place for place, name in enumerate(names) if name.startswith(">"))
    return Table(title, tuple(name.removeprefix(">") for name in names), tuple(rows), right, total)
