"""What differs between two plans, in a plan's own terms."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.model.spans import span_names
from meshwright.plan.diff import Change, diff_plans
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from tests.plan.models import data_of, llama, mixture
from tests.plan.rule_cases import DELETE, PIPELINE, ROLES, edited, inputs_of
from tests.plan.strategies import valid_plans

EXPERTS = {"span": "decoder.2-3", "part": "experts", "roles": {"dp": "ep", "tp": "tp"}}
MOE = edited(PIPELINE, {"model": data_of(mixture(llama())), "plan/stages/1/layers/2": EXPERTS})
FULL = {"span": "decoder.0-1", "roles": ROLES, "recompute": "full"}
LAYOUT = {"dp": "tp", "tp": "dp/zero3"}

CHANGES: dict[str, tuple[dict[str, Any], list[Change]]] = {
    "micro-batches and schedule": (
        {"plan/micro_batches": 8, "plan/schedule": "gpipe"},
        [Change("micro_batches", "4", "8"), Change("schedule", "1f1b", "gpipe")],
    ),
    "execution": (
        {"plan/execution": {"sync": "last", "bucket_mib": 50.0}},
        [Change("execution.bucket_mib", "25.0", "50.0"), Change("execution.sync", "each", "last")],
    ),
    "what the plan is for": (
        {"plan/model/name": "other", "plan/recipe": {"global_batch": 32, "sequence": {"tokens": 64, "audio": 8}}},
        [
            Change("model", "tiny", "other"),
            Change("recipe.global_batch", "16", "32"),
            Change("recipe.sequence", "32", "{audio: 8, tokens: 64}"),
        ],
    ),
    "roles of layers that stand together": (
        {"plan/stages/0/layers/1/roles": LAYOUT, "plan/stages/1/layers/0/roles": LAYOUT},
        [Change("decoder.0-3 roles", "{dp: dp/zero1, tp: tp}", "{dp: tp, tp: dp/zero3}")],
    ),
    "roles of layers that do not": (
        {"plan/stages/0/layers/0/roles/dp": "dp", "plan/stages/1/layers/1/roles/dp": "dp"},
        [Change("embed, head roles", "{dp: dp/zero1, tp: tp}", "{dp: dp, tp: tp}")],
    ),
    "recompute and offload": (
        {"plan/stages/0/layers/1": FULL | {"offload": {"optimizer": "cpu", "activations": "cpu"}}},
        [
            Change("decoder.0-1 recompute", "none", "full"),
            Change("decoder.0-1 offload", "none", "optimizer, activations"),
        ],
    ),
    "a layer on another stage": (
        {"plan/stages/0/layers/1/span": "decoder.0-2", "plan/stages/1/layers/0/span": "decoder.3"},
        [Change("decoder.2 stage", "stage 1 on b", "stage 0 on a")],
    ),
    "a layer less": ({"plan/stages/1/layers/1": DELETE}, [Change("head", "present", "absent")]),
    "devices and mesh": (
        {"plan/groups/a": {"devices": "0,2,1,3", "mesh": {"dp": 4, "tp": 1}}},
        [
            Change("groups.a.devices", "0-3", "0,2,1,3"),
            Change("groups.a.mesh", "{dp: 2, tp: 2}", "{dp: 4, tp: 1}"),
            Change("embed, decoder.0-1 roles", "{dp: dp/zero1, tp: tp}", "{dp: dp/zero1}"),
        ],
    ),
    "axes of equal sizes that change places": (
        {"plan/groups/a/mesh": {"tp": 2, "dp": 2}},
        [Change("embed, decoder.0-1 roles", "{dp: dp/zero1, tp: tp}", "{dp: tp, tp: dp/zero1}")],
    ),
    "a group more": (
        {"plan/groups/c": {"devices": "8-9", "mesh": {"dp": 2}}},
        [Change("groups.c", "absent", "devices 8-9, mesh {dp: 2}")],
    ),
}


@pytest.mark.parametrize(("edits", "changes"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_said_in_a_plans_terms(edits: dict[str, Any], changes: list[Change]) -> None:
    before, after = inputs_of(PIPELINE).plan, inputs_of(edited(PIPELINE, edits)).plan
    assert diff_plans(before, after) == changes
    assert len(diff_plans(after, before)) == len(changes)


def test_the_roles_of_a_part_are_said_where_it_has_its_own() -> None:
    before, after = (inputs_of(edited(MOE, edits)).plan for edits in ({"plan/stages/1/layers/2": DELETE}, {}))
    assert diff_plans(before, after) == [
        Change("decoder.2-3 experts roles", "as its layer", "{dp: ep, tp: tp}"),
        Change("decoder.2-3 experts recompute", "as its layer", "none"),
        Change("decoder.2-3 experts offload", "as its layer", "none"),
    ]


def test_a_change_reads_as_where_before_and_after() -> None:
    assert str(Change("micro_batches", "4", "8")) == "micro_batches: 4 → 8"


SAME: dict[str, dict[str, Any]] = {
    "a span in two rows": {
        "plan/stages/0/layers": [{"span": span, "roles": ROLES} for span in ("embed", "decoder.0", "decoder.1")],
    },
    "devices one by one": {"plan/groups/a/devices": [0, 1, 2, 3]},
    "other names of groups": {
        "plan/groups": {name: PIPELINE["plan"]["groups"][old] for name, old in (("b", "a"), ("a", "b"))},
        "plan/stages/0/on": "b",
        "plan/stages/1/on": "a",
    },
    "other names of axes": {
        "plan/groups/a/mesh": {"x": 2, "y": 2},
        "plan/stages/0/layers": [
            {"span": span, "roles": {"y": "tp", "x": "dp/zero1"}} for span in ("embed", "decoder.0-1")
        ],
    },
    "an axis of one device": {
        "plan/groups/a/mesh": {"dp": 2, "one": 1, "tp": 2},
        "plan/stages/0/layers": [{"span": span, "roles": ROLES | {"one": "cp"}} for span in ("embed", "decoder.0-1")],
    },
    "a part that is as its layer": {"plan/stages/0/layers/2": {"span": "decoder.0", "part": "mlp", "roles": ROLES}},
    "one length for all streams": {"plan/recipe/sequence": {"tokens": 32}},
    "a fingerprint that only one has": {"plan/model/fingerprint": "0123456789abcdef"},
    "a name": {"plan/name": "the same"},
    "defaults written out": {"plan/execution": {"prefetch": 1}, "plan/stages/0/layers/0/recompute": "none"},
}


@pytest.mark.parametrize("edits", SAME.values(), ids=SAME)
def test_what_means_the_same_is_no_change(edits: dict[str, Any]) -> None:
    before, after = inputs_of(PIPELINE).plan, inputs_of(edited(PIPELINE, edits)).plan
    assert diff_plans(before, after) == []
    assert diff_plans(after, before) == []


@st.composite
def respelled(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """A plan, and the same one with other names of groups and every layer in a row of its own."""
    plan = draw(valid_plans()).plan
    data = {"meshwright_plan": 1} | plan.as_data()
    renamed = {name: f"group_{place}" for place, name in enumerate(draw(st.permutations(list(data["groups"]))))}
    data["groups"] = {renamed[name]: group for name, group in data["groups"].items()}
    data["stages"] = [
        {
            "on": renamed[stage["on"]],
            "layers": [row | {"span": name} for row in stage["layers"] for name in span_names(row["span"])],
        }
        for stage in data["stages"]
    ]
    return plan, Plan.from_data(data)


QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(respelled())
def test_spelling_is_no_change(plans: tuple[Plan, Plan]) -> None:
    assert diff_plans(*plans) == []


@QUICK
@given(valid_plans(), valid_plans())
def test_a_difference_is_the_same_from_both_sides(one: Inputs, other: Inputs) -> None:
    forth, back = diff_plans(one.plan, other.plan), diff_plans(other.plan, one.plan)
    assert bool(forth) == bool(back)
    assert all(change.before != change.after for change in forth)
