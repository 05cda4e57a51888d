"""With each row as the anchor in turn."""

import pytest

from meshwright.validation.any_anchor import any_anchor, any_anchors
from meshwright.validation.regimes import anchored
from tests.validation.build import scored


def test_a_common_factor_is_no_error_whatever_row_sets_it() -> None:
    found = any_anchor([-0.3] * 5)
    assert (found.median, found.high) == (pytest.approx(0.0), pytest.approx(0.0))
    assert found.met == 1.0


def test_the_anchor_that_counts_is_one_of_those_that_are_tried() -> None:
    rows = [scored(2.0, seconds, seq_len=str(seconds)) for seconds in (1.0, 2.0)]
    found = any_anchors(rows, "A")[("here", "a100-80gb")]
    (left,) = anchored(rows)
    assert left.error is not None
    assert abs(left.error) in (pytest.approx(0.5), pytest.approx(1.0))
    assert (found.low, found.median, found.high) == (pytest.approx(0.625), pytest.approx(0.75), pytest.approx(0.875))
    assert found.met == 0.0


def test_sources_of_few_rows_and_other_grades_are_left_out() -> None:
    rows = [scored(1.0, 2.0, grade=grade, seq_len=grade) for grade in "ABB"]
    assert any_anchors(rows, "A") == {}
    assert [found.rows for found in any_anchors(rows, "B").values()] == [2]
