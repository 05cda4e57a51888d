"""Texts cut or filled up to pieces of one length: one after the other through all of them, or one each."""

import math
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.train.data.encode import Encoder, Flat, flattened
from meshwright.train.data.folders import write_folder
from meshwright.train.data.rows import Rows, every
from meshwright.train.data.tokenizer import Tokens

_PARTS = "tokens", "starts", "counts"


class Piece(NamedTuple):
    """`length` tokens, those of one sample."""

    tokens: NDArray[np.int64]
    counts: NDArray[np.bool_]
    """True where a token is there to be learnt: it is no filling, and no prompt."""
    begins: NDArray[np.int64]
    """The places where a text begins, but for the first."""
    real: int
    """Tokens that are no padding."""

    @property
    def attention(self) -> NDArray[np.int64]:
        """What transformers calls `attention_mask`: 1 for each token, 0 for padding."""
        return (np.arange(len(self.tokens)) < self.real).astype(np.int64)


class Pieces(Protocol):
    """Pieces by number."""

    is_padded: bool
    block: int
    """Pieces that lie together in a file."""

    @property
    def count(self) -> int | None:
        """How many; none where they have no end."""

    def piece(self, number: int) -> Piece: ...


class Packed:
    """All texts one after the other, cut where a piece is full: each token is in one piece and counts once. The last
    piece is filled up from the first, with tokens that do not count there.
    """

    is_padded, block = False, 1

    def __init__(
        self, tokens: Tokens, starts: NDArray[np.int64], counts: NDArray[np.bool_] | None, length: int
    ) -> None:
        self._tokens, self._starts, self._counts, self._length = tokens, starts, counts, length

    @property
    def count(self) -> int:
        """How many."""
        return math.ceil(len(self._tokens) / self._length)

    def piece(self, number: int) -> Piece:
        """The tokens from `number` x length on."""
        first, end = number * self._length, (number + 1) * self._length
        own = np.asarray(self._tokens[first:end]).astype(np.int64)
        counts = np.ones(len(own), bool) if self._counts is None else np.asarray(self._counts[first:end])
        begins = self._starts[slice(*np.searchsorted(self._starts, (first + 1, end)))] - first
        missing = self._length - len(own)
        if missing:
            filling = np.resize(np.asarray(self._tokens[: self._length]), missing).astype(np.int64)
            begins = np.append(begins, len(own))
            own, counts = np.concatenate([own, filling]), np.concatenate([counts, np.zeros(missing, bool)])
        return Piece(own, counts, begins, self._length)


class Single:
    """A text each piece, cut where it is longer and filled up where it is shorter."""

    is_padded = True

    def __init__(self, rows: Rows, encoder: Encoder, length: int) -> None:
        self._rows, self._encoder, self._length, self.block = rows, encoder, length, rows.block

    @property
    def count(self) -> int:
        """How many."""
        return len(self._rows)

    def piece(self, number: int) -> Piece:
        """The beginning of a row's text."""
        tokens, counts = next(self._encoder([self._rows[number]]))
        real = min(len(tokens), self._length)
        whole = np.full(self._length, self._encoder.tokenizer.pad, np.int64)
        whole[:real] = tokens[:real]
        learnt = np.arange(self._length) < real
        if counts is not None:
            learnt[:real] = counts[:real]
        return Piece(whole, learnt, np.zeros(0, np.int64), real)


def packed(rows: Rows, encoder: Encoder, length: int, cache: Path | None = None) -> Packed:
    """Pack all rows. With a folder as `cache`, tokens are written there once, and mapped into memory from then on.
    Raises MeshwrightError where the folder cannot be written.
    """
    if cache is not None and cache.is_dir():
        return Packed(*_cached(cache), length)
    flat = flattened(encoder(every(rows)))
    if cache is None:
        return Packed(*flat, length)
    write_folder(cache, partial(_keep, flat))
    return Packed(*_cached(cache), length)


def _keep(flat: Flat, folder: Path) -> None:
    for name, array in zip(_PARTS, flat, strict=True):
        if array is not None:
            np.save(folder / f"{name}.npy", array)


def _cached(cache: Path) -> Flat:
    files = (cache / f"{name}.npy" for name in _PARTS)
    tokens, starts, counts = (np.load(file, mmap_mode="r") if file.exists() else None for file in files)
    assert tokens is not None
    assert starts is not None
    return tokens, starts, counts
