"""What stages spend their time on, and how their groups are joined."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cost.calibration import IDEAL, DeviceConstants
from meshwright.cost.collectives import Network, seconds
from meshwright.cost.layer_times import OneWay, Spent, time_layer
from meshwright.cost.placement import Placement
from meshwright.cost.simulation import Link, Tied
from meshwright.cost.stage_times import Stages, _Host
from meshwright.cost.volumes import step_collectives
from meshwright.cost.wires import Wires
from meshwright.plan.groups import process_groups
from meshwright.plan.rules import Inputs
from meshwright.recipe.spec import Recipe
from tests.cost.build import QUICK, gpt2, inputs
from tests.plan.test_groups import spread_listener
from tests.plans import golden

TABLE = 4 * 128 * 64
"""Bytes of the gradient of the small GPT-2's table of words."""


def tied(given: Inputs) -> list[Tied]:
    """What groups sum together at the end of a step; nothing else is reduced."""
    stages = Stages(Placement(given, IDEAL))
    assert not any(work.reduce.total for work in stages.work)
    return stages.tied


@pytest.mark.parametrize("virtual", [1, 2])
def test_a_group_sums_a_tied_parameter_once_however_many_stages_it_has(virtual: int) -> None:
    model, recipe = gpt2(), Recipe(global_batch=8, sequence=64)
    plan = mw.uniform_plan(model, "2xh100", recipe, pp=2, virtual=virtual, micro_batches=4)
    given = Inputs(plan, model, mw.cluster("2xh100"), recipe)
    once = seconds("all_reduce", TABLE, 2, Network(given.cluster).way((0, 1)))
    assert tied(given) == [Tied((0, 1), pytest.approx(once))]


def test_the_slowest_pair_that_shares_a_tied_parameter_decides() -> None:
    """Devices 0 and 6 are in one node; 2 and 8 are not."""
    given = inputs(gpt2(), "2x8xh100", {"all": 6}, {"all": "copy"}, pp=2)
    network = Network(given.cluster)
    slow = seconds("all_reduce", TABLE, 2, network.way((2, 8)))
    assert slow > seconds("all_reduce", TABLE, 2, network.way((0, 6)))
    assert tied(given) == [Tied((0, 1), pytest.approx(slow))]


def listener_inputs(*, last: int) -> Inputs:
    """The listener with its decoder over two groups."""
    plan, model = spread_listener(last=last)
    recipe = Recipe(global_batch=8, sequence={"tokens": 16})
    return Inputs(plan, model, mw.cluster("8xh100"), recipe)


def test_an_encoder_is_a_link_to_every_stage_that_reads_it() -> None:
    links = Stages(Placement(listener_inputs(last=4), IDEAL)).links
    assert {(link.source, link.target) for link in links} == {(0, 1), (0, 2), (1, 2)}
    assert all(link.forward > 0 and link.backward > 0 for link in links)


@pytest.mark.parametrize("name", [*golden.NAMES, "listener", "listener, unlike"])
def test_what_costs_time_between_groups_has_a_process_group_and_the_other_way_round(name: str) -> None:
    listeners = {"listener": 2, "listener, unlike": 4}
    given = listener_inputs(last=listeners[name]) if name in listeners else golden.inputs(name)
    plan, reads = given.plan, {layer.name: layer.reads for layer in given.model.layers}
    of = {rank: group for group, found in plan.groups.items() for rank in found.devices}
    joined = [
        [{of[rank] for rank in ranks} for ranks in one.ranks]
        for one in process_groups(plan, reads=reads)
        if one.purpose == "pipeline"
    ]
    crossed = {(edge.source.group, edge.target.group) for edge in Placement(given).edges}
    crossed = {ends for ends in crossed if ends[0] != ends[1]}
    for ends in crossed:
        assert any(set(ends) <= ranks for lists in joined for ranks in lists)
    assert {group for lists in joined for ranks in lists for group in ranks} == {
        end for ends in crossed for end in ends
    }


def spent(cluster: str, launch: float) -> tuple[float, dict[str, float]]:
    """Kernels that one stage launches forward, and what it spends its time on, where each takes so long to launch."""
    reached = IDEAL.model_copy(update={"others": DeviceConstants(launch=launch)})
    recipe = {"precision": {"compute": "fp32"}}
    placement = Placement(inputs(gpt2(), cluster, {"all": 1}, {"all": "dp"}, recipe=recipe), reached)
    wires = Wires(placement)
    blocks = [placement.block_of[layer.name] for layer in placement.inputs.model.layers]
    launches = sum(time_layer(placement, wires, block).forward.launches for block in blocks)
    [work] = Stages(placement).work
    return launches, work.forward.parts


def test_a_device_waits_for_a_host_that_is_slower_and_a_cpu_for_each_operation() -> None:
    """By hand: hosts launch ahead of devices, which wait for what is longer; a CPU launches and computes in turn."""
    for cluster in ("1xh100", "cpu:1"):
        launches, parts = spent(cluster, 1e-3)
        ahead = cluster == "1xh100"
        assert parts["launch"] == pytest.approx(launches * 1e-3 - parts["forward"] * ahead)
        _, parts = spent(cluster, 1e-12)
        assert parts.get("launch", 0) == pytest.approx(0 if ahead else launches * 1e-12)


layers = st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10), st.booleans()), min_size=1, max_size=5)


@QUICK
@given(layers)
def test_a_host_that_launches_ahead_is_waited_for_less_than_one_that_does_not(
    found: list[tuple[float, int, bool]],
) -> None:
    """And layers take no less than the longer of host and device, in all, whether ranks exchange in them or not: a
    host waits for no exchange.
    """
    ways = [
        OneWay(Spent({("tensor" if exchanges else "forward"): own}), launches=count) for own, count, exchanges in found
    ]
    computing, launches = sum(own for own, _, _ in found), sum(count for _, count, _ in found)
    ahead, apart = (_Host(1.0, ahead=ahead).waited(ways, computing) for ahead in (True, False))
    assert 0 <= ahead <= apart * (1 + 1e-12) + 1e-12
    assert apart == launches
    assert computing + ahead >= max(computing, launches) * (1 - 1e-12)
    alone = [OneWay(Spent({"forward": own}), launches=count) for own, count, _ in found]
    assert ahead == _Host(1.0, ahead=True).waited(alone, computing)


def test_a_host_that_waits_for_each_kernel_adds_all_that_it_launches_and_hides_nothing() -> None:
    """CUDA_LAUNCH_BLOCKING=1: gradients are summed after the last backward, and kernels launched one by one."""
    reached = IDEAL.model_copy(update={"others": DeviceConstants(launch=1e-6)})
    asked = {"overlap": ["gradients"]}
    ahead, apart = (
        Stages(Placement(inputs(gpt2(), "2xh100", {"all": 2}, {"all": "dp"}, execution=asked | more), reached)).work[0]
        for more in ({}, {"blocking": True})
    )
    for way in ("forward", "backward"):
        spent, waited = (getattr(work, way).parts for work in (ahead, apart))
        assert waited["launch"] == pytest.approx(spent["launch"] + spent[way])
    assert apart.reduce.parts["state"] > ahead.reduce.parts["state"]


@pytest.mark.parametrize(("kernels", "parts"), [("megatron-fused", 2), ("megatron-eager", 1)])
def test_tensor_ranks_send_what_they_all_have_in_parts_where_the_implementation_does(kernels: str, parts: int) -> None:
    """By hand: 4 samples of 64 positions of 64 numbers in bf16, halved over two ranks and gathered on arrival."""
    given_inputs = inputs(
        gpt2(), "2x2xh100", {"t": 2}, {"t": "tp"}, pp=2, batch=4, execution={"kernels": kernels, "overlap": []}
    )
    placement = Placement(given_inputs, IDEAL)
    stages, network, whole = Stages(placement), Network(given_inputs.cluster), 2 * 4 * 64 * 64
    sent = seconds("p2p", whole / parts, 2, network.crossing([(0, 2), (1, 3)]))
    assert stages.links == [Link(0, 1, pytest.approx(sent), pytest.approx(sent))]
    gathered = pytest.approx(seconds("all_gather", whole, 2, network.way((0, 1)))) if parts > 1 else 0.0
    assert stages.work[1].forward.parts.get("transition", 0.0) == gathered
    assert stages.work[0].backward.parts.get("transition", 0.0) == gathered
    moved = {(one.kind, one.when): one.bytes for one in step_collectives(given_inputs) if one.purpose == "transition"}
    assert moved == ({("all_gather", when): whole for when in ("forward", "backward")} if parts > 1 else {})


def test_the_slowest_host_of_a_group_is_waited_for() -> None:
    recipe = {"precision": {"compute": "fp16"}}
    reached = {"h100": DeviceConstants(launch=1e-6), "v100": DeviceConstants(launch=1e-3)}
    given_inputs = inputs(gpt2(), "2xh100+2xv100", {"all": 4}, {"all": "dp"}, recipe=recipe)
    placements = [
        Placement(given_inputs, IDEAL.model_copy(update={"devices": reached | changed}))
        for changed in ({}, {"h100": DeviceConstants(launch=1e-3)})
    ]
    once, both = (Stages(placement).work[0].forward.parts["launch"] for placement in placements)
    assert once == both > 0


def test_ranks_that_share_cores_launch_in_turn() -> None:
    reached = IDEAL.model_copy(update={"others": DeviceConstants(launch=1e-3)})
    recipe = {"precision": {"compute": "fp32"}}
    apart, shared = (
        Stages(Placement(inputs(gpt2(), cluster, {"all": 4}, {"all": "dp"}, recipe=recipe), reached)).work[0]
        for cluster in ("cpu:4", "cpu:4/2")
    )
    assert shared.forward.parts["launch"] == pytest.approx(2 * apart.forward.parts["launch"])
