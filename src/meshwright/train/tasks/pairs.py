"""Tasks of one row a sample: sequence to sequence, and telling texts and images apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError
from meshwright.runtime.loss import IGNORED
from meshwright.train.data.pieces import Single
from meshwright.train.data.rows import Row, Rows, every, value_of
from meshwright.train.tasks.language import OfPieces, Sample


@dataclass(frozen=True)
class Translation(OfPieces):
    """Sequence to sequence: a text from another one. What a decoder is given, the runtime makes of the labels."""

    targets: Single

    def sample(self, number: int, _: int) -> Sample:
        """`input_ids`, `attention_mask` [source], `labels` [target]."""
        source, target = self.pieces.piece(number), self.targets.piece(number)
        return {
            "input_ids": source.tokens,
            "attention_mask": source.attention,
            "labels": np.where(target.counts, target.tokens, IGNORED),
        }


class Labels:
    """The class of each row: a number, or a name; names are numbered in their order.

    Raises MeshwrightError for a number that the model has no class for, and for more names than classes.
    """

    def __init__(self, rows: Rows, column: str, classes: int | None) -> None:
        self._column, self._classes = column, classes
        first = self._of(rows[0])
        self._numbers = self._numbered(rows) if isinstance(first, str) else {}

    def __call__(self, row: Row) -> int:
        """The number of a row's class."""
        label = self._of(row)
        number = self._numbers[label] if isinstance(label, str) else int(label)
        if number < 0 or (self._classes is not None and number >= self._classes):
            raise MeshwrightError(
                f"column '{self._column}' has the class {number}; the model tells 0 to {(self._classes or 1) - 1} apart"
            )
        return number

    def _of(self, row: Row) -> Any:
        label = value_of(row, self._column)
        if isinstance(label, bool) or not isinstance(label, int | str | np.integer):
            raise MeshwrightError(
                f"column '{self._column}' holds {label!r:.60}, which is no class: a whole number or a name"
            )
        return label

    def _numbered(self, rows: Rows) -> Mapping[str, int]:
        names = sorted({str(self._of(row)) for row in every(rows)})
        if self._classes is not None and len(names) > self._classes:
            raise MeshwrightError(
                f"column '{self._column}' has {len(names)} classes; the model tells {self._classes} apart"
            )
        return {name: number for number, name in enumerate(names)}


@dataclass(frozen=True)
class TextClasses(OfPieces):
    """Which class a text is of."""

    rows: Rows
    labels: Labels

    def sample(self, number: int, _: int) -> Sample:
        """`input_ids`, `attention_mask` [length], `labels` []."""
        text = self.pieces.piece(number)
        return {
            "input_ids": text.tokens,
            "attention_mask": text.attention,
            "labels": np.array(self.labels(self.rows[number])),
        }


@dataclass(frozen=True)
class ImageClasses:
    """Which class an image is of."""

    rows: Rows
    labels: Labels
    column: str
    channels: int
    size: int

    @property
    def count(self) -> int:
        """How many."""
        return len(self.rows)

    @property
    def block(self) -> int:
        """Samples that lie together in a file."""
        return self.rows.block

    def sample(self, number: int, _: int) -> Sample:
        """`pixel_values` [channels, size, size] from -1 to 1, `labels` []."""
        row = self.rows[number]
        return {
            "pixel_values": pixels(opened(row, self.column), self.channels, self.size),
            "labels": np.array(self.labels(row)),
        }


def opened(row: Row, column: str) -> Any:
    """The image of a row, however it is held: an image, an array, bytes, or a path. Raises MeshwrightError."""
    import io

    from PIL import Image

    held = value_of(row, column)
    if isinstance(held, Mapping):  # as Hugging Face's Parquet files hold them
        held = held.get("bytes") or held.get("path")
    try:
        if isinstance(held, bytes):
            return Image.open(io.BytesIO(held))
        if isinstance(held, str | Path):
            return Image.open(held)
        return held if isinstance(held, Image.Image) else Image.fromarray(np.asarray(held, np.uint8))
    except (OSError, TypeError, ValueError) as error:
        raise MeshwrightError(f"column '{column}' holds no image that can be read: {error}") from None


def pixels(image: Any, channels: int, size: int) -> NDArray[np.float32]:
    """[channels, size, size] from -1 to 1. Raises MeshwrightError for a file that breaks off."""
    try:
        same = image.convert("L" if channels == 1 else "RGB")
    except OSError as error:
        raise MeshwrightError(f"an image cannot be read: {error}") from None
    if same.size != (size, size):
        same = same.resize((size, size))
    values = np.asarray(same, np.float32).reshape(size, size, channels)
    return np.ascontiguousarray(values.transpose(2, 0, 1)) / 127.5 - 1
