"""The notation of devices: short, and nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.ranks import format_ranks, parse_ranks

SAME = {
    "0": (0,),
    "0-3": (0, 1, 2, 3),
    "0-6:2": (0, 2, 4, 6),
    "5,3": (5, 3),
    "0-3,8": (0, 1, 2, 3, 8),
    "0-1*2+4": (0, 1, 4, 5),
    "0-1*2+4*2+100": (0, 1, 4, 5, 100, 101, 104, 105),
    "0-127*8+2048": tuple(rank + 2048 * turn for turn in range(8) for rank in range(128)),
}


@pytest.mark.parametrize(("text", "ranks"), SAME.items())
def test_devices_are_written_in_short_and_read_back(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text) == ranks
    assert format_ranks(ranks) == text


def test_spaces_between_terms_do_not_matter() -> None:
    assert parse_ranks(" 0-1 , 7 ") == (0, 1, 7)


lists = st.lists(st.integers(0, 40), min_size=1, max_size=40)
blocks = st.builds(
    lambda start, inner, turns, shift: [start + rank + turn * shift for turn in range(turns) for rank in range(inner)],
    st.integers(0, 9),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 12),
)


@given(lists | blocks)
def test_any_list_of_devices_is_read_back_in_its_order(ranks: list[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(ranks)


def test_16384_devices_in_blocks_stand_on_one_short_line() -> None:
    ranks = [block * 2048 + rank for block in range(8) for rank in range(128)]
    assert len(format_ranks(ranks)) < 20
    assert format_ranks(range(16384)) == "0-16383"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no list of devices; write '0-7'"),
        ("a-b", "'a-b' is no list of devices"),
        ("0-", "'0-' is no list of devices"),
        ("-1", "'-1' is no list of devices"),
        ("3-1", "'3-1' is empty; write the smaller device first"),
        ("0-3:0", "is empty"),
        ("0-3*0+4", "names no devices"),
        ("0-99999999", "devices are numbered from 0"),
        ("0-3*99999999+4", "devices are numbered from 0"),
        ("0-999999*9+1", "names more than"),
    ],
)
def test_what_names_no_devices_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_ranks(text)
