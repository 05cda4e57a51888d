"""What `validate` does: rows read and chosen, scored with a bar on a terminal, and the tables or a document made."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.cost.calibration import Calibration
from meshwright.document import write_text
from meshwright.errors import UnknownNameError, did_you_mean
from meshwright.report.accuracy import Regimes, write_accuracy
from meshwright.report.blocks import Block, Lines
from meshwright.report.progress import progress
from meshwright.report.screen import show, write
from meshwright.report.validation import validation_blocks, validation_data
from meshwright.report.worst import worst_blocks
from meshwright.validation.rows import Measured, read_rows
from meshwright.validation.score import Scored, Task, score_rows


@dataclass(frozen=True)
class Validation:
    """What was scored, and whether that is all."""

    scored: list[Scored]
    asked: int
    calibration: str

    @property
    def whole(self) -> bool:
        """Whether nobody stopped it."""
        return len(self.scored) == self.asked


def chosen_rows(files: Sequence[str], sources: Sequence[str]) -> list[Measured]:
    """The rows of these files, or of those that come with the package, of these sources, or of all. Raises
    DocumentError, UnknownNameError.
    """
    rows = read_rows(files or None)
    known = {row.source for row in rows}
    for name in sources:
        if name not in known:
            raise UnknownNameError(f"--source: no row is of '{name}'; {did_you_mean(name, known)}")
    return [row for row in rows if not sources or row.source in sources]


def score_all(tasks: Sequence[Task]) -> list[Scored]:
    """Score rows, with a bar on a terminal; what was done so far where somebody presses Ctrl-C."""
    done: list[Scored] = []
    with progress("rows", len(tasks)) as advance:
        try:
            for each in score_rows(tasks):
                done.append(each)
                advance()
        except KeyboardInterrupt:
            pass
    return done


def validate(rows: Sequence[Measured], calibration: Calibration) -> Validation:
    """Score rows by a calibration."""
    scored = score_all([Task(row, calibration) for row in rows])
    return Validation(scored, len(rows), f"{calibration.name}: {calibration.source}")


def show_validation(found: Validation, worst: int, json_file: str | None) -> None:
    """Print the tables, then the worst rows; write the data where a file is named, `-` for standard output alone."""
    if json_file:
        data = validation_data(found.scored, found.calibration, whole=found.whole)
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
        if json_file == "-":
            write(text)
            return
        write_text(json_file, text)
    show(False, dict, lambda: _blocks(found, worst))


def _blocks(found: Validation, worst: int) -> list[Block]:
    blocks = validation_blocks(found.scored, found.calibration)
    if worst:
        blocks += worst_blocks(found.scored, worst)
    if not found.whole:
        blocks.append(Lines("", (f"stopped after {len(found.scored):,} of {found.asked:,} rows",), "warning"))
    return blocks


def write_document(path: str | Path, rows: Sequence[Measured], calibration: Calibration) -> list[str]:
    """Fill in the tables of a document (`accuracy.TABLES`), and say which."""
    return write_accuracy(path, Regimes(rows, _all_of, calibration))


def _all_of(tasks: Sequence[Task]) -> list[Scored]:
    scored = score_all(tasks)
    if len(scored) < len(tasks):
        raise KeyboardInterrupt  # half a table is none
    return scored
