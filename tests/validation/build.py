"""Rows and predictions made by hand, and files of a few rows."""

import csv
from pathlib import Path

from meshwright.cost.footprint import Footprint, Range
from meshwright.validation.rows import DATA, Measured
from meshwright.validation.score import Predicted, Scored

ROW = {
    "source_id": "here",
    "model_name": "GPT-small",
    "gpu": "A100-80GB-SXM",
    "n_gpus": "8",
    "framework": "Megatron-LM",
    "grade": "A",
    "status": "ok",
    "recompute": "none",
}


def measured(**fields: str) -> Measured:
    """A row of these columns, beside the usual ones."""
    return Measured("rows.csv:2", ROW | fields)


def scored(predicted: float, seconds: float | None, *, word: str = "fits", out: float = 0.0, **fields: str) -> Scored:
    """A row of so many measured seconds with its prediction."""
    row = measured(measured_iter_time_s="" if seconds is None else str(seconds), **fields)
    footprint = Footprint(Range(9e9, 11e9), Range(10e9, 14e9), Range(12e9, 16e9), Range(12e9, 16e9))
    found = Predicted(predicted, {"forward": predicted}, footprint, 80e9, out, word, "one device")
    return Scored(row, found, device="a100-80gb", family="megatron", lab="a lab")


def skipped(reason: str, **fields: str) -> Scored:
    """A row without a prediction."""
    return Scored(measured(**fields), reason=reason)


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    """A file of rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def some_rows(source: str, count: int) -> list[dict[str, str]]:
    """The first rows of a source that comes with the package."""
    with (DATA / f"{source}.csv").open(encoding="utf-8", newline="") as file:
        return [row for _, row in zip(range(count), csv.DictReader(file), strict=False)]
