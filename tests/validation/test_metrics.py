"""The figures of a source, against numbers worked out by hand."""

import math

import pytest

from meshwright.validation.metrics import errors_of, fits_of, metrics_of, sources_of
from tests.validation.build import scored, skipped


def test_an_error_is_predicted_over_measured_less_one() -> None:
    each = scored(1.5, 2.0)
    assert each.error == -0.25
    assert each.log_error == pytest.approx(math.log(0.75))


def test_errors_are_medians_means_and_percentiles_of_fractions() -> None:
    found = errors_of([0.1, -0.3, 0.2, -0.4])
    assert found is not None
    assert (found.rows, found.median, found.mean) == (4, pytest.approx(0.25), pytest.approx(0.25))
    assert found.bias == pytest.approx(-0.1)
    assert found.p90 == pytest.approx(0.37)  # 0.7 of the way from the third to the fourth
    assert errors_of([]) is None


def test_what_ran_out_of_memory_has_no_error_of_time_or_memory() -> None:
    each = scored(1.0, 2.0, status="oom", peak_mem_gb="10", mem_kind="reserved")
    assert (each.error, each.memory_error, each.timed) == (None, None, False)


@pytest.mark.parametrize(
    ("kind", "middle"), [("GB (torch peak)", 10e9), ("GiB reserved, max over ranks", 12e9), ("nvidia-smi GB", 14e9)]
)
def test_memory_is_compared_with_the_figure_of_its_kind(kind: str, middle: float) -> None:
    each = scored(1.0, 1.0, peak_mem_gb="10", mem_kind=kind)
    assert each.predicted_memory == middle
    assert each.memory_error == pytest.approx(middle / (10 * 2**30) - 1)


def test_memory_of_a_kind_that_no_table_knows_is_not_compared() -> None:
    assert scored(1.0, 1.0, peak_mem_gb="10", mem_kind="as felt").memory_error is None


def test_the_table_of_fits_counts_words_and_balances_both_kinds() -> None:
    rows = [
        scored(1.0, 1.0),
        scored(1.0, 1.0, word="may not fit", out=0.3),
        scored(1.0, 1.0, word="does not fit", out=0.9),
        scored(1.0, None, word="does not fit", out=0.8, status="oom"),
        scored(1.0, None, word="may not fit", out=0.4, status="oom"),
        skipped("no"),
    ]
    found = fits_of(rows)
    assert found.fitted == {"fits": 1, "may not fit": 1, "does not fit": 1}
    assert found.ran_out == {"fits": 0, "may not fit": 1, "does not fit": 1}
    assert (found.impossible, found.caught) == (1, 1)
    assert found.balanced_accuracy == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert fits_of(rows[:3]).balanced_accuracy is None


def test_a_source_counts_skipped_rows_by_reason_and_keeps_grades_apart() -> None:
    rows = [
        scored(1.1, 1.0),
        scored(2.0, 1.0, grade="B"),
        skipped("its grade is C", grade="C"),
        skipped("no time"),
        skipped("its grade is C", grade="C"),
        scored(1.0, 1.0, source_id="another"),
    ]
    another, here = sources_of(rows)
    assert (another.name, here.name) == ("another", "here")
    assert (here.rows, here.used) == (5, 2)
    assert here.skipped == {"its grade is C": 2, "no time": 1}
    assert list(here.skipped) == ["its grade is C", "no time"]
    assert here.grade == "A"
    assert here.grades["A"].time is not None
    assert here.grades["A"].time.bias == pytest.approx(0.1)
    assert here.grades["B"].time is not None
    assert here.grades["B"].time.bias == pytest.approx(1.0)


def test_metrics_of_rows_without_times_have_none() -> None:
    found = metrics_of([scored(1.0, None, peak_mem_gb="10", mem_kind="GB (torch peak)")])
    assert (found.rows, found.time, found.spearman) == (1, None, None)
    assert found.memory["GB (torch peak)"].figure == "allocated"
    assert found.all_memory is not None
    assert found.all_memory.rows == 1


def test_full_recompute_is_judged_beside_where_a_row_does_not_say() -> None:
    each = scored(1.0, 1.25)
    assert each.predicted is not None
    beside = type(each)(each.row, each.predicted._replace(full_recompute=1.5))
    assert metrics_of([each]).full_recompute is None
    found = metrics_of([beside, each])
    assert found.full_recompute is not None
    assert (found.full_recompute.rows, found.full_recompute.bias) == (1, pytest.approx(0.2))
