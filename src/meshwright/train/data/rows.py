"""Rows: what a source holds, by number, read when asked for."""

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from meshwright.errors import MeshwrightError, did_you_mean, first_line

Row = dict[str, Any]


class Rows(Protocol):
    """Rows by number. `block` of them lie together in a file: the next ones are quick to read."""

    block: int

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row: ...


class _Files:
    """Rows of several files, one after the other."""

    block = 1

    def __init__(self, files: Sequence[Path], counts: Iterable[int]) -> None:
        self.files = files
        self._ends = list(accumulate(counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _place(self, index: int) -> tuple[int, int]:
        """The file of a row, and its number there."""
        number = bisect_right(self._ends, index)
        return number, index - (self._ends[number - 1] if number else 0)


class TextFiles(_Files):
    """Each file is one text. `errors` is what becomes of bytes that are no UTF-8, as for `bytes.decode`."""

    def __init__(self, files: Sequence[Path], errors: str = "strict") -> None:
        super().__init__(files, (1 for _ in files))
        self._errors = errors

    def __getitem__(self, index: int) -> Row:
        file = self.files[index]
        try:
            return {"text": read(file).decode("utf-8", self._errors)}
        except UnicodeDecodeError as error:
            raise MeshwrightError(f"{file}: no UTF-8 text (byte {error.start}); convert it, or leave it out") from None


class JsonLines(_Files):
    """A JSON object on each line that is not blank."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._starts = [_line_starts(file) for file in files]
        super().__init__(files, map(len, self._starts))

    def __getitem__(self, index: int) -> Row:
        number, line = self._place(index)
        file, start = self.files[number], int(self._starts[number][line])
        with file.open("rb") as stream:
            stream.seek(start)
            text = stream.readline()
        try:
            row = json.loads(text)
        except ValueError as error:
            raise MeshwrightError(f"{file}: row {line + 1} is no JSON ({error}): {_shown(text)}") from None
        if not isinstance(row, dict):
            raise MeshwrightError(f"{file}: row {line + 1} is no JSON object: {_shown(text)}")
        return row


class Parquet(_Files):
    """Parquet files; a group of rows is read as a whole and kept for the next ones."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._open = [_parquet(file) for file in files]
        groups = [
            (file, group, file.metadata.row_group(group).num_rows)
            for file in self._open
            for group in range(file.metadata.num_row_groups)
        ]
        super().__init__(files, (rows for *_, rows in groups))
        self.block = max((rows for *_, rows in groups), default=1)

        @lru_cache(maxsize=4)
        def read_group(number: int) -> Any:
            file, group, _ = groups[number]
            return file.read_row_group(group)

        self._group = read_group

    def __getitem__(self, index: int) -> Row:
        number, place = self._place(index)
        row: Row = self._group(number).slice(place, 1).to_pylist()[0]
        return row


class HubRows:
    """A Hugging Face dataset, mapped into memory."""

    block = 1

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Row:
        row: Row = self._dataset[index]
        return row


class Listed:
    """Rows that are in memory."""

    block = 1

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self._rows[index]


class Taken:
    """Some of the rows, in their order."""

    def __init__(self, rows: Rows, indices: Sequence[int]) -> None:
        self._rows, self._indices, self.block = rows, indices, rows.block

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Row:
        return self._rows[int(self._indices[index])]


def every(rows: Rows) -> Iterator[Row]:
    """All rows in their order, each read when it is its turn."""
    return (rows[index] for index in range(len(rows)))


def value_of(row: Row, column: str) -> Any:
    """What a column holds. Raises MeshwrightError where the row has none of that name."""
    if column not in row:
        raise MeshwrightError(f"a row has no column '{column}'; {did_you_mean(column, row)} (data.columns names them)")
    return row[column]


def divided(rows: Rows, share: float, held_out: bool) -> Rows:
    """The rows to learn from, or those held out: a fixed choice at random, whatever a run's seed is. A text that is the
    only one is cut in two. Raises MeshwrightError where one of the two would be empty.
    """
    if len(rows) == 1 and isinstance(text := rows[0].get("text"), str) and share:
        cut = len(text) - math.ceil(len(text) * share)
        return Listed([{"text": text[cut:] if held_out else text[:cut]}])
    count = math.ceil(len(rows) * share)
    if not share or count == len(rows):
        if held_out or count:
            raise MeshwrightError(f"data.held_out {share:g} of {len(rows)} rows leaves none on one side; change it")
        return rows
    out = np.zeros(len(rows), bool)
    out[np.random.Generator(np.random.Philox(len(rows))).permutation(len(rows))[:count]] = True
    return Taken(rows, np.flatnonzero(out if held_out else ~out).tolist())


def read(file: Path) -> bytes:
    """All of a file. Raises MeshwrightError."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise MeshwrightError(f"cannot read {file}: {error.strerror or error}") from None


def _line_starts(file: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    starts, place = [], 0
    try:
        with file.open("rb") as stream:
            for line in stream:
                if not line.isspace():
                    starts.append(place)
                place += len(line)
    except OSError as error:
        raise MeshwrightError(f"cannot read {file}: {error.strerror or error}") from None
    return np.array(starts, np.int64)


def _parquet(file: Path) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(file)
    except (OSError, ArrowException) as error:
        raise MeshwrightError(f"cannot read {file} as Parquet: {first_line(error)}") from None


def _shown(text: bytes) -> str:
    return text[:60].decode("utf-8", "replace").strip() + (" ..." if len(text) > 60 else "")
