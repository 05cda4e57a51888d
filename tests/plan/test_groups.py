"""Rank arithmetic: from axes to process groups."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.errors import DocumentError, PlanError
from meshwright.model.spec import ModelSpec
from meshwright.plan.groups import (
    axis_groups,
    coordinates,
    local_batch,
    mesh_order,
    position,
    process_groups,
    read_groups,
    show_groups,
)
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Group, Plan, Role, Row
from tests.plan.models import listener
from tests.plan.rule_cases import PIPELINE, edited, inputs_of
from tests.plan.strategies import valid_plans

CUBE = Group(devices="0-7", mesh={"dp": 2, "pp": 2, "tp": 2})

AXES = {
    ("tp",): ((0, 1), (2, 3), (4, 5), (6, 7)),
    ("pp",): ((0, 2), (1, 3), (4, 6), (5, 7)),
    ("dp",): ((0, 4), (1, 5), (2, 6), (3, 7)),
    ("dp", "tp"): ((0, 1, 4, 5), (2, 3, 6, 7)),
    ("tp", "dp"): ((0, 1, 4, 5), (2, 3, 6, 7)),
    ("dp", "pp", "tp"): ((0, 1, 2, 3, 4, 5, 6, 7),),
    (): tuple((rank,) for rank in range(8)),
}


@pytest.mark.parametrize(("axes", "ranks"), AXES.items(), ids=str)
def test_the_groups_over_axes_are_the_devices_that_differ_in_these_alone(
    axes: tuple[str, ...], ranks: tuple[tuple[int, ...], ...]
) -> None:
    assert axis_groups(CUBE, axes) == ranks


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Groups of any shape, their devices in any order."""
    mesh = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), max_size=4))
    devices = draw(st.permutations(range(3, 3 + math.prod(mesh.values()))))
    return Group(devices=tuple(devices), mesh=mesh)


@st.composite
def groups_with_axes(draw: st.DrawFn) -> tuple[Group, list[str]]:
    """A group, and some of its axes in any order."""
    group = draw(groups())
    return group, draw(st.permutations([axis for axis in group.mesh if draw(st.booleans())]))


@given(groups_with_axes())
def test_groups_over_axes_partition_the_devices_evenly(case: tuple[Group, list[str]]) -> None:
    group, axes = case
    found = axis_groups(group, axes)
    assert sorted(rank for ranks in found for rank in ranks) == sorted(group.devices)
    assert {len(ranks) for ranks in found} == {math.prod(group.mesh[axis] for axis in axes)}


@given(groups())
def test_the_group_over_all_axes_is_all_devices_in_their_order(group: Group) -> None:
    assert axis_groups(group, group.mesh) == (group.devices,)


@given(groups_with_axes())
def test_groups_over_some_axes_meet_those_over_the_others_in_one_device(case: tuple[Group, list[str]]) -> None:
    group, axes = case
    across = axis_groups(group, [axis for axis in group.mesh if axis not in axes])
    for one, other in itertools.product(axis_groups(group, axes), across):
        assert len(set(one) & set(other)) == 1


@given(groups_with_axes())
def test_a_rank_stands_in_its_group_at_its_position(case: tuple[Group, list[str]]) -> None:
    group, axes = case
    for ranks in axis_groups(group, axes):
        assert [position(group, rank, axes) for rank in ranks] == list(range(len(ranks)))
        fixed = [{axis: at for axis, at in coordinates(group, rank).items() if axis not in axes} for rank in ranks]
        assert all(others == fixed[0] for others in fixed)


@given(groups())
def test_coordinates_are_those_of_the_mesh_in_row_major_order(group: Group) -> None:
    places = itertools.product(*(range(size) for size in group.mesh.values()))
    assert [tuple(coordinates(group, rank).values()) for rank in group.devices] == list(places)


def test_a_rank_of_another_group_has_no_coordinates() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        coordinates(CUBE, 8)


def test_axes_are_sorted_as_the_mesh_has_them() -> None:
    assert mesh_order(CUBE, ["tp", "dp"]) == ("dp", "tp")


@given(groups_with_axes())
def test_groups_are_read_back_as_they_are_shown(case: tuple[Group, list[str]]) -> None:
    found = axis_groups(*case)
    shown = show_groups(found)
    assert read_groups(shown) == found
    assert (shown["size"], shown["count"]) == (len(found[0]), len(found))


def test_groups_that_are_shifts_of_the_first_are_shown_in_short() -> None:
    big = Group(devices="0-16383", mesh={"pp": 16, "dp": 8, "cp": 16, "tp": 8})
    assert show_groups(axis_groups(big, ["cp"])) == {
        "size": 16,
        "count": 1024,
        "first": "0-120:8",
        "starts": "0-7*128+128",
    }


@given(groups_with_axes(), st.integers(1, 3))
def test_every_sample_is_held_by_the_ranks_of_one_place_along_dp(case: tuple[Group, list[str]], each: int) -> None:
    group, axes = case
    row = Row(span="embed", roles={axis: Role("dp" if axis in axes else "copy") for axis in group.mesh})
    samples = each * math.prod(group.mesh[axis] for axis in axes)
    for ranks in axis_groups(group, axes):
        shares = [local_batch(samples, group, row, rank) for rank in ranks]
        assert [first for first, _ in shares] == [place * each for place in range(len(ranks))]
        assert {count for _, count in shares} == {each}


def test_samples_that_do_not_divide_are_an_error() -> None:
    row = Row(span="embed", roles={"dp": "dp", "pp": "copy", "tp": "tp"})
    with pytest.raises(ValueError, match="5 samples do not divide over 2 ranks"):
        local_batch(5, CUBE, row, 0)


def purposes(plan: Plan, *ties: Any) -> dict[str, set[tuple[tuple[int, ...], ...]]]:
    """The lists of ranks for each purpose."""
    found: dict[str, set[tuple[tuple[int, ...], ...]]] = {}
    for group in process_groups(plan, ties):
        found.setdefault(group.purpose, set()).add(group.ranks)
    return found


def test_a_pipeline_has_the_groups_of_its_roles_and_passes_on_place_by_place() -> None:
    found = purposes(inputs_of(PIPELINE).plan, ("embed", ["head"]))
    pairs, crossed = {((0, 1), (2, 3)), ((4, 5), (6, 7))}, {((0, 2), (1, 3)), ((4, 6), (5, 7))}
    across = {((0, 4), (1, 5), (2, 6), (3, 7))}
    assert found == {
        "tensor": pairs,
        "batch": crossed,
        "shard": crossed,
        "gradient": crossed,
        "pipeline": across,
        "tied": across,
    }


def spread_listener(*, last: int = 2) -> tuple[Plan, ModelSpec]:
    """An encoder on one group, and its decoder over two; the last of them has so many devices."""
    model, groups = listener(), {"a": "0-1", "b": "2-3", "c": f"4-{3 + last}"}
    roles = {"x": "dp"}
    layers = {"a": ["frames", "encoder.0-1"], "b": ["embed", "decoder.0"], "c": ["decoder.1"]}
    data = {
        "meshwright_plan": 1,
        "model": {"name": model.name},
        "cluster": {"name": "8xh100"},
        "recipe": {"global_batch": 8, "sequence": {"tokens": 16}},
        "micro_batches": 2,
        "groups": {
            name: {"devices": devices, "mesh": {"x": last if name == "c" else 2}} for name, devices in groups.items()
        },
        "stages": [
            {"on": name, "layers": [{"span": span, "roles": roles} for span in spans]} for name, spans in layers.items()
        ],
    }
    return Plan.from_data(data), model


def pipelines(plan: Plan, model: ModelSpec) -> dict[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """The lists of ranks that pass activations on, with the layers where they are noted."""
    reads = {layer.name: layer.reads for layer in model.layers}
    return {one.ranks: one.used_by for one in process_groups(plan, reads=reads) if one.purpose == "pipeline"}


def test_what_an_encoder_puts_out_goes_to_every_stage_that_reads_it() -> None:
    """decoder.1 on c reads encoder.1 on a, which is no neighbour."""
    assert pipelines(*spread_listener(last=4)) == {
        ((0, 2), (1, 3)): ("embed",),
        ((0, 4, 5), (1, 6, 7)): ("decoder.1",),
        ((2, 4, 5), (3, 6, 7)): ("decoder.1",),
    }


def test_where_all_cut_alike_one_list_has_all_stages_of_a_place() -> None:
    assert pipelines(*spread_listener()) == {((0, 2, 4), (1, 3, 5)): ("frames",)}


def test_stages_that_do_not_read_each_other_pass_nothing_on() -> None:
    plan, model = spread_listener(last=4)
    reads = {layer.name: layer.reads for layer in model.layers} | {"decoder.1": ("encoder.1",)}
    found = {one.ranks for one in process_groups(plan, reads=reads) if one.purpose == "pipeline"}
    assert found == {((0, 2), (1, 3)), ((0, 4, 5), (1, 6, 7))}


def test_a_groups_name_is_a_word() -> None:
    with pytest.raises(DocumentError, match=r"a > b: must be lower-case letters, digits and _, with a letter first"):
        inputs_of(edited(PIPELINE, {"plan/groups/a > b": {"devices": "8", "mesh": {"dp": 1}}}))


def test_states_on_some_axes_leave_replicas_over_the_others() -> None:
    rows = [{"span": span, "roles": {"dp": "dp", "tp": "dp/zero3"}} for span in ("embed", "decoder.0-1")]
    found = purposes(inputs_of(edited(PIPELINE, {"plan/stages/0/layers": rows})).plan)
    assert ((0, 1), (2, 3)) in found["shard"]
    assert ((0, 2), (1, 3)) in found["replica"]
    assert ((0, 1, 2, 3),) in found["gradient"]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(valid_plans())
def test_groups_do_not_depend_on_the_order_of_roles_in_a_row(inputs: Inputs) -> None:
    data = {"meshwright_plan": 1} | inputs.plan.as_data()
    for stage in data["stages"]:
        for row in stage["layers"]:
            row["roles"] = dict(reversed(row["roles"].items()))
    turned = Plan.from_data(data)
    assert turned == inputs.plan
    assert turned.fingerprint == inputs.plan.fingerprint
    assert purposes(turned) == purposes(inputs.plan)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(valid_plans())
def test_every_kind_of_group_of_a_layer_partitions_the_devices_of_its_stage(inputs: Inputs) -> None:
    sizes = {placed.layer: set(inputs.plan.groups[placed.group].devices) for placed in inputs.plan.placed}
    for group in process_groups(inputs.plan):
        ranks = [rank for each in group.ranks for rank in each]
        assert len(ranks) == len(set(ranks))
        if group.purpose not in ("pipeline", "tied"):
            assert set(ranks) in sizes.values()


def test_the_order_of_a_mesh_is_part_of_a_plan() -> None:
    plan = inputs_of(PIPELINE).plan
    turned = inputs_of(edited(PIPELINE, {"plan/groups/a/mesh": {"tp": 2, "dp": 2}})).plan
    assert turned != plan
    assert turned.fingerprint != plan.fingerprint


def test_a_mesh_that_does_not_hold_its_devices_has_no_groups() -> None:
    with pytest.raises(PlanError, match="has 6 places for 8 devices"):
        axis_groups(Group(devices=tuple(range(8)), mesh={"a": 2, "b": 3}), ["a"])
