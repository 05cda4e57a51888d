import numpy as np
import pytest

from meshwright.validation.fit import Parameter, fit, weights

NUMBERS = np.random.default_rng(7)
SHAPES = NUMBERS.uniform(0.1, 1.0, size=(60, 2))  # seconds of two kinds of work, by row


def predict(values):
    """Two rates: the time of each row is the sum of its work over them."""
    return np.log(SHAPES @ (1 / values))


def slopes(values, predicted):
    return -(SHAPES / values) / np.exp(predicted)[:, None]


def parameters(low=0.05, high=2.0):
    return [Parameter(name, 0.7, 0.5, low, high) for name in ("matmul", "memory")]


def test_known_constants_are_found_again() -> None:
    found = fit(parameters(), predict(np.array([0.5, 0.9])), np.ones(60), predict, slopes)
    assert found.values == pytest.approx((0.5, 0.9), rel=0.01)
    assert np.abs(found.errors).max() < 0.01
    assert found.at_bound == ()


def test_a_few_wild_rows_change_little() -> None:
    measured = predict(np.array([0.5, 0.9]))
    measured[:6] += 1.5  # ten per cent of the rows took 4.5 times as long
    found = fit(parameters(), measured, np.ones(60), predict, slopes)
    assert found.values == pytest.approx((0.5, 0.9), rel=0.03)
    plain = np.linalg.lstsq(SHAPES, np.exp(measured), rcond=None)[0]
    assert abs(1 / plain[0] - 0.5) > 0.07  # without robustness they would


def test_what_rows_do_not_tell_stays_at_its_guess() -> None:
    def alone(values):
        return np.log(SHAPES[:, 0] / values[0])

    def alone_slopes(values, predicted):
        return np.column_stack([-np.ones(60), np.zeros(60)])

    found = fit(parameters(), alone(np.array([0.5])), np.ones(60), alone, alone_slopes)
    assert found.values == pytest.approx((0.5, 0.7), rel=0.01)


def test_a_bound_that_is_touched_is_named() -> None:
    found = fit(parameters(high=0.8), predict(np.array([0.5, 0.95])), np.ones(60), predict, slopes)
    assert found.at_bound == ("memory",)
    assert found.values[1] == pytest.approx(0.8)


def test_a_source_counts_as_the_root_of_its_rows() -> None:
    assert weights(["a"] * 16 + ["b"] * 4).tolist() == [0.25] * 16 + [0.5] * 4
