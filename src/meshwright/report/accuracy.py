"""The generated tables of docs/accuracy.md. Prose is written by hand; a table stands between its markers,

    <!-- generated: NAME -->
    <!-- end of NAME -->

and only the tables whose markers are in the file are made: a document that has the baseline's alone gets it alone.
"""

import csv
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from meshwright.cost.calibration import IDEAL, Calibration
from meshwright.document import read_text, write_text
from meshwright.errors import DocumentError, did_you_mean
from meshwright.report.blocks import Block, table
from meshwright.report.markdown import markdown_text
from meshwright.report.validation import (
    any_anchor_table,
    assumptions_table,
    fits_table,
    memory_table,
    ranking_table,
    rows_table,
    skipped_table,
    time_table,
)
from meshwright.validation.metrics import sources_of
from meshwright.validation.regimes import anchored, fold_tasks, read_folds
from meshwright.validation.rows import PRIOR_ART, Measured
from meshwright.validation.score import Scored, Task

_MARKED = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n.*?<!-- end of (?P=name) -->", re.DOTALL)
_MARKER = re.compile(r"<!-- generated: ([\w-]+) -->")

Scorer = Callable[[Sequence[Task]], list[Scored]]


class Regimes:
    """The rows scored under each regime, when a table asks for it."""

    def __init__(self, rows: Sequence[Measured], scorer: Scorer, calibration: Calibration | None = None) -> None:
        self.rows, self.scorer, self.calibration = rows, scorer, calibration

    @cached_property
    def baseline(self) -> list[Scored]:
        """The plain roofline, with public peaks and bandwidths."""
        return self.scorer([Task(row, IDEAL) for row in self.rows])

    @cached_property
    def fitted(self) -> list[Scored]:
        """The calibration that estimates use, fitted to these rows among others."""
        return self.scorer([Task(row, self.calibration) for row in self.rows])

    @cached_property
    def blind(self) -> list[Scored]:
        """Each source by a calibration fitted without it, its lab and its framework family."""
        return self.scorer(fold_tasks(self.rows, read_folds(sorted({row.source for row in self.rows}))))

    @cached_property
    def anchored(self) -> list[Scored]:
        """The same; one row of each source and device sets a factor for the others."""
        return anchored(self.blind)


def _times(scored: Sequence[Scored]) -> list[Block | None]:
    sources = sources_of(scored)
    return [time_table(sources, "A"), ranking_table(sources, "A"), time_table(sources, "B")]


def _rows(scored: Sequence[Scored]) -> list[Block | None]:
    sources = sources_of(scored)
    taken = [assumptions_table(scored, grade) for grade in "AB"]
    return [rows_table(sources), skipped_table(sources), *taken]


def _prior_art() -> list[Block | None]:
    with PRIOR_ART.open(encoding="utf-8", newline="") as file:
        rows = [tuple(row[name] for name in _PRIOR_COLUMNS) for row in csv.DictReader(file)]
    return [table("", "tool | where | what | on | checked against | error that it reports | source", rows)]


_PRIOR_COLUMNS = (
    *("tool", "venue_year", "what_is_predicted", "hardware", "validation_set", "reported_error", "source"),
)
TABLES: dict[str, Callable[[Regimes], list[Block | None]]] = {
    "baseline": lambda regimes: _times(regimes.baseline),
    "fitted": lambda regimes: _times(regimes.fitted),
    "blind": lambda regimes: _times(regimes.blind),
    "anchored": lambda regimes: _times(regimes.anchored),
    "any-anchor": lambda regimes: [any_anchor_table(regimes.blind)],
    "prior-art": lambda _: _prior_art(),
    "memory": lambda regimes: [memory_table(sources_of(regimes.fitted))],
    "fits": lambda regimes: [fits_table(sources_of(regimes.fitted))],
    "rows": lambda regimes: _rows(regimes.baseline),
}
"""Marker → the tables between it and its end."""


def write_accuracy(path: str | Path, regimes: Regimes) -> list[str]:
    """Fill in the tables whose markers a document has, and say which. Raises DocumentError where it has none, or one
    that is not known or has no end.
    """
    text = read_text(path)
    names = _MARKER.findall(text)
    _check(path, names, [match["name"] for match in _MARKED.finditer(text)])
    made = {name: _section(name, regimes) for name in names}
    write_text(path, _MARKED.sub(lambda match: made[match["name"]], text))
    return names


def _check(path: str | Path, names: Sequence[str], whole: Sequence[str]) -> None:
    if not names:
        message = "no '<!-- generated: NAME -->' says where a table goes"
        raise DocumentError(f"{path}: {message}; known names: {', '.join(TABLES)}")
    for name in names:
        if name not in TABLES:
            raise DocumentError(f"{path}: no table is called '{name}'; {did_you_mean(name, TABLES)}")
        if name not in whole:
            raise DocumentError(f"{path}: after '<!-- generated: {name} -->' there is no '<!-- end of {name} -->'")


def _section(name: str, regimes: Regimes) -> str:
    blocks = [block for block in TABLES[name](regimes) if block is not None]
    return f"<!-- generated: {name} -->\n{markdown_text(blocks)}<!-- end of {name} -->"
