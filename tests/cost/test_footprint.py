"""From allocated bytes to a chance of running out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.calibration import IDEAL, DeviceConstants, public_calibration, read_calibration
from meshwright.cost.footprint import Range, Taken, footprint
from meshwright.cost.verdict import judge_memory
from meshwright.errors import DocumentError
from tests.cost.build import QUICK, inputs, llama

factors = st.tuples(st.floats(1, 2), st.floats(1, 2)).map(lambda pair: (min(pair), max(pair)))
contexts = st.tuples(st.floats(0, 1e10), st.floats(0, 1e10)).map(lambda pair: (min(pair), max(pair)))
constants = st.builds(
    DeviceConstants,
    spread=st.floats(0.001, 0.5),
    fragmentation=factors,
    fragmentation_in_flight=factors,
    context=contexts,
    communicator=contexts,
)


@st.composite
def peaks(draw: st.DrawFn) -> Taken:
    """A peak of which some rests."""
    peak = draw(st.floats(1e6, 1e12))
    return Taken(
        peak,
        resting=peak * draw(st.floats(0, 1)),
        pinned=draw(st.floats(0, 1e11)),
        freed=draw(st.floats(0, 1e11)),
        communicators=draw(st.integers(0, 9)),
        overlapping=draw(st.booleans()),
    )


@QUICK
@given(peaks(), constants)
def test_a_device_is_asked_for_more_than_is_reserved_and_that_is_more_than_is_allocated(
    taken: Taken, reached: DeviceConstants
) -> None:
    found = footprint(taken, reached)
    for low, high in found:
        assert low <= high
    assert found.allocated.low <= taken.peak <= found.allocated.high
    assert found.allocated.low <= found.reserved.low <= found.device.low
    assert found.allocated.high <= found.reserved.high <= found.device.high
    assert found.allocated.high <= found.needed.high <= found.device.high


@QUICK
@given(peaks(), constants, st.floats(0.1, 10))
def test_the_chance_falls_with_what_the_device_has(taken: Taken, reached: DeviceConstants, more: float) -> None:
    device = footprint(taken, reached).device
    limit = device.middle * more
    assert 0 <= device.chance_above(limit * 1.1) <= device.chance_above(limit) <= 1
    assert device.chance_above(device.middle) == pytest.approx(0.5)
    assert device.chance_above(device.high) == pytest.approx(0.05)


def test_states_that_rest_leave_no_gaps_and_micro_batches_in_flight_leave_more() -> None:
    reached = DeviceConstants(fragmentation=(1.0, 1.1), fragmentation_in_flight=(1.0, 1.6))
    all_rests, alone, many = (
        footprint(taken, reached).reserved
        for taken in (Taken(10.0, resting=10.0), Taken(10.0), Taken(10.0, overlapping=True))
    )
    assert {all_rests.low, alone.low, many.low} == {10.0}
    assert (all_rests.high, alone.high, many.high) == pytest.approx((10.0, 11.0, 16.0))


def test_tensors_of_another_time_are_reserved_and_not_allocated() -> None:
    found = footprint(Taken(10.0, pinned=3.0), DeviceConstants())
    assert (found.allocated.high, found.reserved.low, found.needed.low) == (10.0, 13.0, 13.0)


def test_what_the_allocator_can_give_back_is_reserved_and_not_needed() -> None:
    found = footprint(Taken(10.0, freed=3.0), DeviceConstants())
    assert (found.reserved.low, found.device.low, found.needed.low) == (13.0, 13.0, 10.0)


def test_each_axis_and_the_pipeline_have_a_communicator() -> None:
    [alone] = judge_memory(inputs(llama(), "2xh100", {"all": 2}, {"all": "dp"})).groups
    assert (alone.communicators, alone.overlapping) == (1, False)
    stages = judge_memory(inputs(llama(), "4xh100", {"all": 2}, {"all": "dp"}, pp=2, micro_batches=4)).groups
    assert [(each.communicators, each.overlapping) for each in stages] == [(2, True), (2, False)]


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
