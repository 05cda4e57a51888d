"""The nearest number that works, and lists in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.numbers import divides, listed, nearest_multiple, nearest_number, show_ranks


@pytest.mark.parametrize(
    ("whole", "target", "nearest"), [(12, 5, 4), (12, 12, 12), (12, 8, 6), (7, 4, 1), (1, 9, 1), (16, 17, 16)]
)
def test_the_nearest_divisor_is_the_smaller_of_two(whole: int, target: int, nearest: int) -> None:
    assert nearest_number(target, divides(whole)) == nearest


def test_where_nothing_near_fits_there_is_a_last_resort() -> None:
    assert nearest_number(10**15, divides(7), 7) == 7


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_no_multiple_is_nearer(target: int, unit: int) -> None:
    nearest = nearest_multiple(target, unit)
    assert nearest % unit == 0
    assert nearest > 0
    assert abs(nearest - target) <= min(abs(other - target) for other in (nearest - unit, nearest + unit) if other > 0)


def test_words_are_listed_as_one_says_them() -> None:
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_many_devices_without_order_are_cut_off() -> None:
    shown = show_ranks([rank * rank for rank in range(100)])
    assert len(shown) == 60
    assert shown.endswith("...")
