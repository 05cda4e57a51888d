"""Texts packed as they come: nothing is read before it is needed, and nothing is kept."""

from typing import NamedTuple

import numpy as np

from meshwright.errors import MeshwrightError
from meshwright.train.data.encode import Encoded, Encoder
from meshwright.train.data.order import Order
from meshwright.train.data.pieces import Piece
from meshwright.train.data.rows import Rows

_AHEAD = 64  # rows that become tokens at one time
_KEPT = 4096  # marks


class Mark(NamedTuple):
    """Where a piece begins: at a row, by its place in an endless run of epochs, and at a token of it."""

    row: int
    token: int


class Streamed:
    """Pieces of an endless run of texts, in the order of the rows. Piece after piece is quick; another one is found
    from the last mark before it, at worst from the beginning. What a piece holds does not depend on who asked before.
    """

    is_padded, block, count = False, 1, None

    def __init__(self, rows: Rows, encoder: Encoder, length: int, order: Order) -> None:
        self._rows, self._encoder, self._length, self._order = rows, encoder, length, order
        self._marks = {0: Mark(0, 0)}
        self._next, self._at = 0, self._marks[0]
        self._ahead: list[Encoded] = []
        self._first = 0

    def mark(self, number: int) -> Mark:
        """Where a piece begins."""
        self._go_to(number)
        return self._at

    def remember(self, number: int, mark: Mark) -> None:
        """Take somebody's word for where a piece begins."""
        self._marks[number] = mark

    def piece(self, number: int) -> Piece:
        """The tokens of a piece. Raises MeshwrightError where no row has any."""
        self._go_to(number)
        taken = [self._take(self._length)]
        begins: list[int] = []
        while (filled := sum(len(each.tokens) for each in taken)) < self._length:
            if self._at.token == 0:
                begins.append(filled)
            taken.append(self._take(self._length - filled))
        self._next += 1
        self._note_mark()
        tokens = np.concatenate([each.tokens for each in taken]).astype(np.int64)
        counts = [np.ones(len(each.tokens), bool) if each.counts is None else each.counts for each in taken]
        return Piece(tokens, np.concatenate(counts), np.array(begins, np.int64), self._length)

    def _go_to(self, number: int) -> None:
        if number != self._next:
            self._next = max(known for known in self._marks if known <= number)
            self._at = self._marks[self._next]
        while self._next < number:
            self.piece(self._next)

    def _note_mark(self) -> None:
        self._marks[self._next] = self._at
        if len(self._marks) > _KEPT:
            self._marks.pop(next(known for known in self._marks if known))  # the beginning stays

    def _take(self, most: int) -> Encoded:
        """The next tokens of the text at hand, which has some; then on to the next text that has."""
        text, some = self._text(), slice(self._at.token, self._at.token + most)
        found = Encoded(text.tokens[some], None if text.counts is None else text.counts[some])
        self._at = Mark(self._at.row, self._at.token + len(found.tokens))
        for _ in range(2 * self._order.count + 1):  # of two epochs at least one text has some
            if self._at.token < len(self._text().tokens):
                return found
            self._at = Mark(self._at.row + 1, 0)
        raise MeshwrightError("no row of the data has any text")

    def _text(self) -> Encoded:
        """The row at hand; rows become tokens some at a time."""
        if not self._first <= self._at.row < self._first + len(self._ahead):
            self._first = self._at.row
            indices = self._order.at(np.arange(self._first, self._first + _AHEAD))
            self._ahead = list(self._encoder(self._rows[index] for index in indices))
        return self._ahead[self._at.row - self._first]
