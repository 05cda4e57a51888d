"""Laws of the learning rate."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.recipe.run import Schedule, Shape
from meshwright.train.learning_rate import share_of_peak

SHAPES = st.sampled_from(get_args(Shape))
STEPS = 60


@given(SHAPES, st.integers(0, 30), st.floats(0, 1))
def test_it_rises_to_the_peak_once_and_never_falls_below_the_floor(shape: Shape, warm_up: int, floor: float) -> None:
    schedule = Schedule(shape=shape, warm_up=warm_up, floor=floor)
    shares = [share_of_peak(schedule, step, STEPS) for step in range(STEPS)]
    assert max(shares) == pytest.approx(1.0)
    assert shares[:warm_up] == sorted(shares[:warm_up])
    assert shares[warm_up:] == sorted(shares[warm_up:], reverse=True)
    assert all(share >= floor - 1e-12 for share in shares[warm_up:])
    assert shares[0] > 0


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_it_ends_at_the_floor(shape: Shape) -> None:
    assert share_of_peak(Schedule(shape=shape, floor=0.25), STEPS - 1, STEPS) == pytest.approx(0.25)


def test_wsd_is_flat_until_its_decay() -> None:
    schedule = Schedule(shape="wsd", warm_up=5, decay=20)
    assert [share_of_peak(schedule, step, STEPS) for step in (5, 30, 40)] == [1.0] * 3
    assert share_of_peak(schedule, 50, STEPS) == pytest.approx(0.5)
