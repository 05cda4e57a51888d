"""Rank correlation and regret, against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.validation.ranking import rank_groups, ranks, regret, spearman
from meshwright.validation.score import Scored
from tests.validation.build import scored, skipped

FLOATS = st.lists(st.integers(0, 20).map(float), min_size=3, max_size=12)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks([5.0, 1.0, 5.0, 5.0, 0.0]).tolist() == [4.0, 2.0, 4.0, 4.0, 1.0]


def test_spearman_without_ties_is_the_textbook_formula() -> None:
    # 1 - 6 sum(d^2) / (n (n^2 - 1)), d = 1, -1, 0, 1, -1
    assert spearman([1, 2, 3, 4, 5], [2, 1, 3, 5, 4]) == pytest.approx(1 - 6 * 4 / (5 * 24))


def test_spearman_with_ties_is_the_correlation_of_ranks() -> None:
    # ranks 1.5 1.5 3 4 against 1 2 3.5 3.5: covariance 4.0 over sqrt(4.5 * 4.5)
    assert spearman([1, 1, 2, 3], [1, 2, 4, 4]) == pytest.approx(4.0 / 4.5)


def test_spearman_of_too_few_or_of_equal_values_is_none() -> None:
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None


@given(FLOATS)
def test_spearman_sees_order_alone(values: list[float]) -> None:
    found = spearman(values, [math.exp(value) for value in values])
    assert found is None or found == pytest.approx(1.0)


def test_regret_is_what_the_predicted_best_takes_longer_than_the_best() -> None:
    assert regret([3.0, 1.0, 2.0], [10.0, 10.5, 12.0]) == pytest.approx(0.05)
    assert regret([1.0, 2.0], [10.0, 20.0]) == 0.0


def test_regret_of_equal_predictions_is_their_mean() -> None:
    assert regret([1.0, 1.0, 2.0], [10.0, 12.0, 8.0]) == pytest.approx(11 / 8 - 1)


def _group(model: str, pairs: list[tuple[float, float]], **fields: str) -> list[Scored]:
    return [scored(predicted, seconds, model_name=model, **fields) for predicted, seconds in pairs]


def test_groups_are_of_one_model_machine_and_batch_and_of_enough_rows() -> None:
    right = _group("right", [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (4.0, 40.0)])
    wrong = _group("wrong", [(4.0, 10.0), (3.0, 20.0), (2.0, 30.0), (1.0, 40.0)])
    small = _group("small", [(2.0, 1.0), (1.0, 2.0)])
    other = _group("right", [(9.0, 1.0)], global_batch="512")
    found = rank_groups([*right, *wrong, *small, *other, skipped("no")])
    assert found.groups == 2
    assert (found.spearman, found.lowest) == (0.0, -1.0)
    assert (found.regret, found.close, found.worst) == (1.5, 0.5, 3.0)
    assert rank_groups([*right, *wrong], 10).groups == 0
    assert rank_groups([], 4) == (0, None, None, None, None, None)
