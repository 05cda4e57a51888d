"""A plan as cost sees it: under another calibration it is the same plan, and nothing of the first one's times stays."""

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from meshwright.cost.calibration import IDEAL, Calibration, DeviceConstants, LinkConstants
from meshwright.cost.estimate import Estimate, estimate_placement, run_step
from meshwright.cost.placement import Placement
from meshwright.plan.rules import Inputs
from tests.plan.strategies import valid_plans
from tests.plans import golden

SLOW = Calibration(
    name="slow",
    source="made up",
    others=DeviceConstants(
        matmul=0.4,
        inner=700,
        units=100,
        batched=0.2,
        flash=0.3,
        flash_backward=0.25,
        memory=0.6,
        spread=0.1,
        fragmentation=(1.1, 1.3),
        context=(1e9, 2e9),
    ),
    other_links=LinkConstants(bandwidth=0.5, latency=1e-5),
    contention=0.3,
)
"""Every constant differs from those of the others."""


def everything(found: Estimate) -> dict[str, Any]:
    """All figures of an estimate, with each bar of its timeline and the bytes during each action."""
    memory = [asdict(each) | {"over_time": each.over_time.tolist()} for each in found.memory]
    return found.as_data() | {"spans": found.timeline.spans, "all_memory": memory}


def check_calibrations(given_inputs: Inputs) -> None:
    first = Placement(given_inputs)
    fresh = {
        each.name: everything(estimate_placement(Placement(given_inputs, each)))
        for each in (first.calibration, SLOW, IDEAL)
    }
    assert everything(estimate_placement(first)) == fresh[first.calibration.name]
    for calibration in (SLOW, IDEAL, first.calibration):
        again = first.with_calibration(calibration)
        assert run_step(again)[1].seconds == fresh[calibration.name]["step_time_s"]
        assert everything(estimate_placement(again)) == fresh[calibration.name]
    assert everything(estimate_placement(first)) == fresh[first.calibration.name]


@pytest.mark.parametrize("name", golden.NAMES)
def test_golden_plans_under_another_calibration_take_what_they_take_there_afresh(name: str) -> None:
    check_calibrations(golden.inputs(name))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(valid_plans())
def test_any_plan_under_another_calibration_takes_what_it_takes_there_afresh(given_inputs: Inputs) -> None:
    check_calibrations(given_inputs)


def test_calibrations_share_what_none_of_them_changes() -> None:
    first = Placement(golden.inputs("three-neighbours"))
    other = first.with_calibration(SLOW)
    assert other.blocks is first.blocks
    assert other.shares(other.blocks[0]) is first.shares(first.blocks[0])
    assert other.calibrated("any", lambda: "its own") != first.calibrated("any", lambda: "this one's")
