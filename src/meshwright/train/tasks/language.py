"""Language modelling: the next token of texts and conversations, or tokens that were hidden."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.runtime.loss import IGNORED
from meshwright.train.data.order import mixed
from meshwright.train.data.pieces import Pieces
from meshwright.train.data.tokenizer import Tokenizer

Sample = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class OfPieces:
    """Samples that are pieces of text."""

    pieces: Pieces

    @property
    def count(self) -> int | None:
        """How many; none where they have no end."""
        return self.pieces.count

    @property
    def block(self) -> int:
        """Samples that lie together in a file."""
        return self.pieces.block


@dataclass(frozen=True)
class NextToken(OfPieces):
    """Causal language modelling: labels are the tokens themselves, not shifted. `apart`: no text of a piece sees
    another one, which positions that begin anew say: transformers' models make their masks of these.
    """

    apart: bool = False

    def sample(self, number: int, _: int) -> Sample:
        """`input_ids`, `labels` [length], and `position_ids` where texts are kept apart."""
        piece = self.pieces.piece(number)
        labels = np.where(piece.counts, piece.tokens, IGNORED)
        if not self.apart:
            return {"input_ids": piece.tokens, "labels": labels}
        labels[piece.begins] = IGNORED  # no text says how another one begins
        return {"input_ids": piece.tokens, "labels": labels, "position_ids": _positions(piece.begins, len(labels))}


def _positions(begins: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Positions that begin at zero in each text.

    >>> _positions(np.array([2, 3]), 6)
    array([0, 1, 0, 0, 1, 2])
    """
    first = np.zeros(length, np.int64)
    first[begins] = begins
    found: NDArray[np.int64] = np.arange(length) - np.maximum.accumulate(first)
    return found


@dataclass(frozen=True)
class HiddenTokens(OfPieces):
    """Masked language modelling (Devlin 2019, section 3.1): of the tokens a share is to be guessed; of these 80 % are
    hidden, 10 % are others, 10 % stay. The choice follows from the seed and the place of the sample in the run: another
    one each epoch, the same under any plan.
    """

    tokenizer: Tokenizer
    mask: int
    """The token that hides another."""
    share: float
    seed: int

    def sample(self, number: int, place: int) -> Sample:
        """`input_ids`, `labels` [length], and `attention_mask` where there is padding."""
        piece = self.pieces.piece(number)
        words = np.arange(len(piece.tokens))
        chance, fate, other = (mixed(self.seed, place, which, words) for which in range(3))
        open_to_it = piece.counts & ~np.isin(piece.tokens, list(self.tokenizer.special))
        wanted = open_to_it & (_unit(chance) < self.share)
        if open_to_it.any() and not wanted.any():
            wanted[np.where(open_to_it, chance, np.uint64(2**64 - 1)).argmin()] = True
        of_ten = _unit(fate) * 10
        tokens = np.where(wanted & (of_ten < 8), self.mask, piece.tokens)
        tokens = np.where(
            wanted & (of_ten >= 9), (other % np.uint64(self.tokenizer.vocabulary)).astype(np.int64), tokens
        )
        found = {"input_ids": tokens, "labels": np.where(wanted, piece.tokens, IGNORED)}
        if self.pieces.is_padded:
            found["attention_mask"] = piece.attention
        return found


def _unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """64 bits → a number from 0 to 1."""
    return words.astype(np.float64) / 2.0**64
