"""The steps of a pipeline: all actions, and messages that cannot lock up."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.orders import Action, orders_of
from meshwright.plan.spec import Plan
from meshwright.runtime.timetable import Post, backward_follows_at_once, timetable
from tests.cost.build import QUICK

LAID = {"gpipe": "abcd", "1f1b": "abcd", "interleaved": "abcabc", "zb-h1": "abcd", "zbv": "abccba", "dualpipev": "abba"}


def _plan(schedule: str, on: str, micro_batches: int) -> Plan:
    groups = {name: {"devices": place, "mesh": {"x": 1}} for place, name in enumerate(dict.fromkeys(on))}
    return Plan.from_data(
        {
            "meshwright_plan": 1,
            "model": {"name": "gpt2"},
            "cluster": {"name": f"cpu:{len(groups)}"},
            "recipe": {"global_batch": micro_batches, "sequence": 4},
            "micro_batches": micro_batches,
            "schedule": schedule,
            "groups": groups,
            "stages": [{"on": name, "layers": []} for name in on],
        }
    )


@QUICK
@given(schedule=st.sampled_from(sorted(LAID)), rounds=st.integers(2, 4))
def test_both_sides_post_their_messages_in_one_order(schedule: str, rounds: int) -> None:
    """So each message waits only for those that stand before it on both sides."""
    plan = _plan(schedule, LAID[schedule], 3 * rounds)
    steps, on = timetable(plan), [stage.on for stage in plan.stages]
    for name, order in orders_of(plan).items():
        assert [step for step in steps[name] if isinstance(step, Action)] == list(order)
        for other in steps:
            pair = {name, other}
            here, there = (
                [
                    step[1:]
                    for step in steps[one]
                    if isinstance(step, Post) and {on[step.edge.source], on[step.edge.target]} == pair
                ]
                for one in (name, other)
            )
            assert here == there


@pytest.mark.parametrize("schedule", LAID)
def test_what_an_action_needs_has_come_before_it(schedule: str) -> None:
    plan = _plan(schedule, LAID[schedule], 6)
    on, checked = [stage.on for stage in plan.stages], 0
    for steps in timetable(plan).values():
        come = set[tuple[int, str, int]]()
        for step in steps:
            if isinstance(step, Post):
                if step.does == "receive":
                    come.add((step.edge[step.way == "forward"], step.way, step.micro_batch))
                continue
            way, other = ("forward", step.stage - 1) if step.kind == "forward" else ("backward", step.stage + 1)
            if step.kind != "weight" and 0 <= other < len(on) and on[other] != on[step.stage]:
                assert (step.stage, way, step.micro_batch) in come
                checked += 1
    assert checked == 2 * 6 * sum(here != there for here, there in pairwise(on))


def test_only_1f1b_goes_back_at_once() -> None:
    assert backward_follows_at_once(_plan("1f1b", "ab", 4))
    assert backward_follows_at_once(_plan("1f1b", "a", 4))
    assert not backward_follows_at_once(_plan("gpipe", "ab", 4))
