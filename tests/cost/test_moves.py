"""Activations between layers that divide them differently."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.flows import Flow
from meshwright.cost.moves import crossing, moves, pairs
from meshwright.plan.divisions import Division, by_tokens, division
from meshwright.plan.groups import local_batch
from meshwright.plan.spec import Group, Row
from tests.cost.build import QUICK

MESH = {"a": 2, "b": 3, "c": 4}
SIZE = 240.0


def row(**roles: str) -> Row:
    """A row with these roles; the other axes are tp."""
    return Row(span="decoder.0", roles={axis: roles.get(axis, "tp") for axis in MESH})  # type: ignore[arg-type]


def between(source: dict[str, str], target: dict[str, str]) -> list[tuple[str, tuple[str, ...], float]]:
    """The moves from one row to another: kind, axes, bytes."""
    found = moves(MESH, division(row(**source), MESH), division(row(**target), MESH), SIZE)
    return [(flow.kind, flow.axes, flow.bytes) for flow in found]


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        pytest.param({"a": "dp"}, {"a": "dp"}, [], id="nothing changes"),
        pytest.param({}, {"a": "dp", "b": "dp"}, [], id="a slice moves nothing"),
        pytest.param({"a": "dp"}, {}, [("all_gather", ("a",), 240)], id="samples are gathered"),
        pytest.param({"a": "dp", "c": "dp"}, {"a": "dp"}, [("all_gather", ("c",), 120)], id="the inner axis alone"),
        pytest.param({"a": "dp"}, {"a": "dp", "c": "dp"}, [], id="the outer samples stay"),
        pytest.param({"a": "dp"}, {"c": "dp"}, [("exchange", ("a", "c"), 60)], id="samples change places"),
        pytest.param({"a": "dp", "b": "dp"}, {"b": "dp"}, [("exchange", ("a", "b"), 80)], id="the outer axis leaves"),
        pytest.param({"b": "dp"}, {"a": "dp", "b": "dp"}, [("exchange", ("a", "b"), 40)], id="an outer axis comes"),
        pytest.param({"a": "cp"}, {}, [("all_gather", ("a",), 240)], id="positions are gathered"),
        pytest.param({}, {"c": "tp+sp"}, [], id="a slice of positions moves nothing"),
        pytest.param({"c": "tp+sp"}, {"c": "ulysses"}, [], id="both divide the positions"),
        pytest.param({"a": "cp"}, {"c": "cp"}, [("exchange", ("a", "c"), 60)], id="positions change places"),
        pytest.param({"c": "dp"}, {"c": "cp"}, [("all_to_all", ("c",), 60)], id="samples become positions"),
        pytest.param(
            {"a": "dp", "c": "dp"}, {"a": "dp", "c": "cp"}, [("all_to_all", ("c",), 30)], id="some of them do"
        ),
        pytest.param(
            {"a": "dp", "c": "dp"}, {"a": "cp", "c": "dp"}, [("exchange", ("a", "c"), 30)], id="the outer ones do"
        ),
        pytest.param({"a": "dp", "c": "cp"}, {"a": "dp"}, [("all_gather", ("c",), 120)], id="under equal samples"),
    ],
)
def test_a_move_carries_what_is_lacking(
    source: dict[str, str], target: dict[str, str], found: list[tuple[str, tuple[str, ...], float]]
) -> None:
    assert between(source, target) == found


sets = st.sets(st.sampled_from(list(MESH)))


@QUICK
@given(source=sets, target=sets)
def test_moves_of_samples_carry_exactly_what_the_worst_off_rank_lacks(source: set[str], target: set[str]) -> None:
    """Every rank's run before and after, by the rank arithmetic of plans."""
    group = Group(devices=tuple(range(24)), mesh=MESH)  # type: ignore[arg-type]
    left, right = (row(**dict.fromkeys(axes, "dp")) for axes in (source, target))
    lacking = 0
    for rank in range(24):
        held, wanted = (set(_run(*local_batch(int(SIZE), group, one, rank))) for one in (left, right))
        lacking = max(lacking, len(wanted - held))
    carried = sum(_received(flow) for flow in moves(MESH, division(left, MESH), division(right, MESH), SIZE))
    assert carried == pytest.approx(lacking)


def _run(first: int, count: int) -> range:
    return range(first, first + count)


def _received(flow: Flow) -> float:
    ranks = 1
    for axis in flow.axes:
        ranks *= MESH[axis]
    return flow.bytes * (ranks - 1) / ranks if flow.kind == "all_gather" else flow.bytes


def test_experts_take_the_positions_that_a_rank_has_whichever_they_are() -> None:
    dense = Row(span="decoder.0", roles={"a": "dp", "b": "copy", "c": "tp+sp"})  # type: ignore[dict-item]
    routed = Row(span="decoder.0", part="experts", roles={"a": "ep", "b": "copy", "c": "ep"})  # type: ignore[dict-item]
    assert moves(MESH, *by_tokens(dense, routed, MESH), SIZE) == []
    assert division(dense, MESH) == Division(("a",), ("c",))


def _group(first: int, roles: dict[str, str], mesh: dict[str, int]) -> tuple[Group, Row]:
    size = 1
    for ways in mesh.values():
        size *= ways
    data: Any = {"devices": f"{first}-{first + size - 1}", "mesh": mesh}
    return Group.model_validate(data), Row.model_validate({"span": "decoder.0", "roles": roles})


@pytest.mark.parametrize(
    ("source", "target", "forward", "backward"),
    [
        pytest.param(({"x": "dp"}, {"x": 4}), ({"x": "dp"}, {"x": 4}), 60, 60, id="alike"),
        pytest.param(({"x": "tp"}, {"x": 4}), ({"x": "tp"}, {"x": 4}), 240, 240, id="tp ranks each send the whole"),
        pytest.param(({"x": "tp+sp"}, {"x": 4}), ({"x": "tp+sp"}, {"x": 4}), 60, 60, id="sp ranks their positions"),
        pytest.param(({"x": "dp"}, {"x": 2}), ({"x": "dp"}, {"x": 4}), 120, 120, id="one feeds two"),
        pytest.param(({"x": "dp"}, {"x": 12}), ({"x": "dp"}, {"x": 4}), 60, 60, id="three feed one"),
    ],
)
def test_a_cut_costs_what_its_busiest_rank_sends_or_receives(
    source: Any, target: Any, forward: float, backward: float
) -> None:
    crossed = crossing(_group(0, *source), _group(12, *target), SIZE)
    assert (crossed.forward, crossed.backward) == (forward, backward)


def test_each_device_of_the_larger_group_has_a_partner() -> None:
    small, large = _group(0, {"x": "dp"}, {"x": 3})[0], _group(3, {"x": "dp"}, {"x": 6})[0]
    assert pairs(small, large).tolist() == [[0, 3], [0, 4], [1, 5], [1, 6], [2, 7], [2, 8]]
    assert pairs(large, small).tolist() == [[3, 0], [4, 0], [5, 1], [6, 1], [7, 2], [8, 2]]
