"""From allocated bytes to a chance of running out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.calibration import IDEAL, DeviceConstants, public_calibration, read_calibration
from meshwright.cost.footprint import Range, footprint
from meshwright.cost.verdict import judge_memory
from meshwright.errors import DocumentError
from tests.cost.build import QUICK, inputs, llama

factors = st.tuples(st.floats(1, 2), st.floats(1, 2)).map(lambda pair: (min(pair), max(pair)))
contexts = st.tuples(st.floats(0, 1e10), st.floats(0, 1e10)).map(lambda pair: (min(pair), max(pair)))
constants = st.builds(DeviceConstants, spread=st.floats(0.001, 0.5), fragmentation=factors, context=contexts)


@QUICK
@given(st.floats(1e6, 1e12), constants)
def test_a_device_is_asked_for_more_than_is_reserved_and_that_is_more_than_is_allocated(
    peak: float, reached: DeviceConstants
) -> None:
    found = footprint(peak, reached)
    for low, high in found:
        assert low <= high
    assert found.allocated.low <= peak <= found.allocated.high
    assert found.allocated.low <= found.reserved.low <= found.device.low
    assert found.allocated.high <= found.reserved.high <= found.device.high


@QUICK
@given(st.floats(1e6, 1e12), constants, st.floats(0.1, 10))
def test_the_chance_falls_with_what_the_device_has(peak: float, reached: DeviceConstants, more: float) -> None:
    device = footprint(peak, reached).device
    limit = device.middle * more
    assert 0 <= device.chance_above(limit * 1.1) <= device.chance_above(limit) <= 1
    assert device.chance_above(device.middle) == pytest.approx(0.5)
    assert device.chance_above(device.high) == pytest.approx(0.05)


def test_a_figure_without_a_range_is_certain() -> None:
    assert (Range(5, 5).chance_above(4), Range(5, 5).chance_above(6)) == (1.0, 0.0)


def test_the_ideal_calibration_adds_nothing() -> None:
    given_inputs = inputs(llama(), "2xh100", {"all": 2}, {"all": "dp"})
    [memory] = judge_memory(given_inputs, IDEAL).groups
    assert memory.footprint.device == (memory.peak, memory.peak)
    [usual] = judge_memory(given_inputs).groups
    assert usual.peak == memory.peak
    assert usual.footprint.device.low > memory.peak


def test_calibrations_are_read_by_name_or_file() -> None:
    assert read_calibration("ideal") is IDEAL
    assert public_calibration().device("h100").matmul < 1
    assert public_calibration().device("a device of tomorrow") == public_calibration().others
    with pytest.raises(DocumentError):
        read_calibration("no-such-file.yaml")


def test_a_calibration_survives_its_file() -> None:
    found = public_calibration()
    assert type(found).parse(found.to_yaml(), "c.yaml") == found
