"""Published measurements as rows: one training run each, in the columns that all sources share."""

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from meshwright.errors import DocumentError

DATA = Path(__file__).parent / "data"
_REQUIRED = ("source_id", "model_name", "gpu", "n_gpus", "framework", "grade", "status")
_NUMBERS = (
    *("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "vocab", "n_experts", "top_k", "moe_ffn_hidden"),
    *("gpus_per_node", "n_gpus", "seq_len", "global_batch", "micro_batch", "dp", "tp", "cp", "pp", "vpp", "ep"),
    *("measured_iter_time_s", "measured_tokens_per_s_per_gpu", "peak_mem_gb"),
)
_MOST = 1e15  # of any number of a row


@dataclass(frozen=True)
class Measured:
    """One row, as its source has it. Empty fields are unknown."""

    place: str
    """File and line, for messages."""
    fields: dict[str, str]

    def text(self, name: str) -> str:
        """A field as it stands; empty where the source says nothing."""
        return self.fields.get(name, "").strip()

    def number(self, name: str) -> float | None:
        """A field as a number; none where it is empty. Raises DocumentError."""
        text = self.text(name)
        try:
            number = float(text) if text else None
        except ValueError:
            number = math.nan
        if number is None or 0 <= number < _MOST:
            return number
        raise DocumentError(f"{self.place}: {name}: '{text[:40]}' is no number from 0 on")

    def count(self, name: str, otherwise: int = 1) -> int:
        """A field as a whole number. Raises DocumentError."""
        number = self.number(name)
        return otherwise if number is None else round(number)

    @property
    def source(self) -> str:
        """The name of the source."""
        return self.text("source_id")

    @property
    def grade(self) -> str:
        """A: all that a simulation needs is there; B: at most two things are not; C: more, or a check fails."""
        return self.text("grade")[:1]

    @property
    def ran_out(self) -> bool:
        """Whether the run ended for want of memory."""
        return self.text("status") == "oom" or self.text("oom").lower() == "true"

    @property
    def seconds(self) -> float | None:
        """The time of a step: as measured, or from tokens a second; none where neither is there."""
        if time := self.number("measured_iter_time_s"):
            return time
        rate, batch, length = (
            self.number(name) for name in ("measured_tokens_per_s_per_gpu", "global_batch", "seq_len")
        )
        return batch * length / (rate * self.count("n_gpus")) if rate and batch and length else None

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory. The sources' GB are 1e9 bytes, their GiB and what nvidia-smi calls GB 2^30."""
        peak = self.number("peak_mem_gb")
        binary = re.search(r"gib|nvidia-smi|torch", self.text("mem_kind").lower())
        return peak * (2**30 if binary else 1e9) if peak else None

    @cached_property
    def identity(self) -> str:
        """What stands for the row whatever file it is in."""
        return "|".join(self.fields[name] for name in sorted(self.fields) if name not in ("notes", "duplicate_of"))


def read_rows(paths: Iterable[str | Path] | None = None) -> list[Measured]:
    """The rows of CSV files; without any, of those that come with the package. Raises DocumentError."""
    files = [Path(path) for path in paths] if paths is not None else sorted(DATA.glob("*.csv"))
    return [row for file in files if file.name != PRIOR_ART.name for row in _read(file)]


PRIOR_ART = DATA / "prior_art_errors.csv"
"""What other predictors report of themselves."""


def _read(file: Path) -> list[Measured]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            columns, rows = list(reader.fieldnames or ()), list(reader)
    except OSError as error:
        raise DocumentError(f"{file}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DocumentError(f"{file}: no CSV: {error}") from None
    if not rows:
        raise DocumentError(f"{file}: {'there are no rows under its columns' if columns else 'it is empty'}")
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        raise DocumentError(f"{file}: columns are missing: {', '.join(missing)}")
    return [_checked(f"{file.name}:{number}", columns, row) for number, row in enumerate(rows, start=2)]


def _checked(place: str, columns: Sequence[str], cells: dict[str, str]) -> Measured:
    """A row whose numbers are numbers, so that a slip of the pen is no reason to skip it."""
    row = Measured(place, {name: cells[name] or "" for name in columns})
    for name in _NUMBERS:
        row.number(name)
    if row.number("n_gpus") == 0:
        raise DocumentError(f"{place}: n_gpus: no device ran")
    return row
