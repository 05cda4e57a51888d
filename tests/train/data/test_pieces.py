"""Packing: each token is in one piece and counts once; a stream gives the same pieces whoever asks."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import MeshwrightError
from meshwright.train.data.encode import Encoded
from meshwright.train.data.order import Order
from meshwright.train.data.pieces import Piece, Single, packed
from meshwright.train.data.rows import Listed, Row
from meshwright.train.data.stream import Streamed
from meshwright.train.data.tokenizer import ByteTokenizer


class Given:
    """Rows that hold their tokens; every third token does not count."""

    tokenizer = ByteTokenizer()

    def __call__(self, rows: Iterable[Row]) -> Iterator[Encoded]:
        for row in rows:
            yield Encoded(np.array(row["t"], np.int32), np.arange(len(row["t"])) % 3 != 0)

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        raise NotImplementedError


def rows_of(lengths: list[int]) -> Listed:
    """Texts whose tokens are all different: 1000 x the text's number and on."""
    return Listed([{"t": [1000 * (number + 1) + at for at in range(size)]} for number, size in enumerate(lengths)])


lengths = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)
sizes = st.integers(1, 20)


def begins(piece: Piece) -> list[int]:
    """Where a text other than the one before begins, read off the tokens themselves."""
    return [at for at in range(1, len(piece.tokens)) if piece.tokens[at] != piece.tokens[at - 1] + 1]


@given(lengths, sizes)
def test_packing_loses_no_token_and_counts_none_twice(lengths: list[int], size: int) -> None:
    rows = rows_of(lengths)
    found = packed(rows, Given(), size)
    pieces = [found.piece(number) for number in range(found.count)]
    every = [token for index in range(len(rows)) for token in rows[index]["t"]]
    tokens = np.concatenate([piece.tokens for piece in pieces])
    assert tokens[: len(every)].tolist() == every
    assert len(tokens) - len(every) < size
    counted = np.concatenate([piece.counts for piece in pieces])
    assert tokens[counted].tolist() == [token for token in every if token % 1000 % 3]
    assert all(piece.begins.tolist() == begins(piece) for piece in pieces[:-1])


@given(lengths, sizes, st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_a_stream_has_the_pieces_of_packing_in_any_order_of_asking(
    lengths: list[int], size: int, asked: list[int]
) -> None:
    rows = rows_of(lengths)
    order = Order(len(lengths), 3, True)
    stream = Streamed(rows, Given(), size, order)
    whole: list[int] = []
    place = 0
    while len(whole) < size * (max(asked) + 1):
        whole += rows[order.at([place])[0]]["t"]
        place += 1
    for number in asked:
        piece = stream.piece(number)
        assert piece.tokens.tolist() == whole[number * size : (number + 1) * size]
        assert (piece.counts == (piece.tokens % 1000 % 3 != 0)).all()


@given(lengths, sizes, st.integers(0, 20))
def test_a_stream_goes_on_from_a_mark_as_if_it_had_read_all(lengths: list[int], size: int, number: int) -> None:
    order = Order(len(lengths), 3, True)
    first = Streamed(rows_of(lengths), Given(), size, order)
    other = Streamed(rows_of(lengths), Given(), size, order)
    other.remember(number, first.mark(number))
    one, two = first.piece(number), other.piece(number)
    assert all((a == b).all() for a, b in zip(one[:3], two[:3], strict=True))


def test_a_stream_that_has_no_text_ends() -> None:
    with pytest.raises(MeshwrightError, match="no row of the data has any text"):
        Streamed(rows_of([0, 0]), Given(), 4, Order(2, 0, True)).piece(0)


def test_single_texts_are_cut_and_filled_up() -> None:
    single = Single(rows_of([3, 9]), Given(), 5)
    short, long = single.piece(0), single.piece(1)
    assert (short.tokens.tolist(), short.real) == ([1000, 1001, 1002, 0, 0], 3)
    assert short.counts.tolist() == [False, True, True, False, False]
    assert (long.tokens.tolist(), long.real) == ([2000, 2001, 2002, 2003, 2004], 5)


def test_tokens_are_written_once_and_read_back(tmp_path: Path) -> None:
    one = packed(rows_of([7, 5]), Given(), 4, tmp_path / "a")
    written = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "a").iterdir()}
    two = packed(rows_of([7, 5]), Given(), 4, tmp_path / "a")
    assert written == {file.name: file.stat().st_mtime_ns for file in (tmp_path / "a").iterdir()}
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert all((one.piece(at).tokens == two.piece(at).tokens).all() for at in range(3))


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeshwrightError, match=r"cannot write .*file/tokens: "):
        packed(rows_of([7]), Given(), 4, tmp_path / "file" / "tokens")
