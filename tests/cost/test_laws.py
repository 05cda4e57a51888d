"""What holds for every plan, whatever it is: laws of time and memory, on random plans that have a meaning.

The models are small, and the clusters of all speeds, so that computing decides in some plans, memory, bandwidth or
latency in others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster, Level
from meshwright.cost.calibration import IDEAL, Calibration, public_calibration
from meshwright.cost.compute import needed_flops
from meshwright.cost.estimate import estimate_plan
from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.layer_states import layer_states
from meshwright.cost.layer_times import OneWay, Spent
from meshwright.cost.memory import plan_memory
from meshwright.cost.overlap import Streams
from meshwright.cost.placement import Placement
from meshwright.cost.stage_times import _Host, _pass
from meshwright.document import Document
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.spec import STATEFUL, STATES, Recompute, Role, Row
from tests.cost.build import gpt2
from tests.plan.strategies import valid_plans

LAWS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
ROUNDING = 1 + 1e-9
"""What sums of floating-point numbers may leave between equal figures."""

Change = Callable[[Row, Mapping[str, int]], Row]


# Clusters and plans, changed in one way


Made = TypeVar("Made", bound=Document)


def changed(document: Made, **fields: Any) -> Made:
    """The document with other fields, and nothing of what it has worked out from the old ones."""
    return type(document)(**{name: getattr(document, name) for name in type(document).model_fields} | fields)


def with_links(cluster: Cluster, *, bandwidth: float = 1.0, latency: float = 1.0) -> Cluster:
    """The cluster with links of so many times the bandwidth and the latency."""
    links = {
        name: link.model_copy(update={"bandwidth": link.bandwidth * bandwidth, "latency": link.latency * latency})
        for name, link in cluster.links.items()
    }
    return changed(cluster, links=links)


def with_devices(cluster: Cluster, *, peak: float = 1.0, memory: float = 1.0) -> Cluster:
    """The cluster with devices of so many times the peak and the bandwidth of memory."""
    devices = {
        name: device.model_copy(
            update={
                "peak": {dtype: rate * peak for dtype, rate in device.peak.items()},
                "memory_bandwidth": device.memory_bandwidth * memory,
            }
        )
        for name, device in cluster.devices.items()
    }
    return changed(cluster, devices=devices)


def with_cards(cluster: Cluster, more: int) -> Cluster:
    """The cluster with so many more cards wherever cards are counted."""

    def levels(found: tuple[Level, ...]) -> tuple[Level, ...]:
        return tuple(level.model_copy(update={"cards": level.cards and level.cards + more}) for level in found)

    pools = tuple(pool.model_copy(update={"levels": levels(pool.levels)}) for pool in cluster.pools)
    across = tuple(way.model_copy(update={"cards": way.cards and way.cards + more}) for way in cluster.across)
    return changed(cluster, pools=pools, across=across)


BETTER: dict[str, Callable[[Cluster, float], Cluster]] = {
    "bandwidth": lambda cluster, times: with_links(cluster, bandwidth=times),
    "latency": lambda cluster, times: with_links(cluster, latency=1 / times),
    "cards": lambda cluster, times: with_cards(cluster, math.ceil(times)),
    "peak": lambda cluster, times: with_devices(cluster, peak=times),
    "memory": lambda cluster, times: with_devices(cluster, memory=times),
}


def with_plan(inputs: Inputs, **fields: Any) -> Inputs:
    """The inputs with other fields of the plan."""
    return inputs._replace(plan=changed(inputs.plan, **fields))


def with_rows(inputs: Inputs, change: Change) -> Inputs:
    """The inputs with every row of the plan changed; a row's mesh is given beside it."""
    stages = []
    for stage in inputs.plan.stages:
        mesh = inputs.plan.groups[stage.on].mesh
        stages.append(stage.model_copy(update={"layers": tuple(change(row, mesh) for row in stage.layers)}))
    return with_plan(inputs, stages=tuple(stages))


def sharded(state: str | None, axes: int) -> Change:
    """Rows with this state on their first so many axes of more than one rank that can carry one."""

    def change(row: Row, mesh: Mapping[str, int]) -> Row:
        able = [axis for axis, role in row.roles.items() if role.split in STATEFUL and mesh[axis] > 1][:axes]
        roles = {axis: Role(role.split, state if axis in able else None) for axis, role in row.roles.items()}
        return row.model_copy(update={"roles": roles})

    return change


def recomputed(what: Recompute) -> Change:
    """Rows that compute this again, and keep activations on the device."""

    def change(row: Row, mesh: Mapping[str, int]) -> Row:
        away = row.offload.model_copy(update={"activations": None})
        return row.model_copy(update={"recompute": what, "offload": away})

    return change


# Random ones

powers = st.integers(-5, 0).map(lambda power: 10.0**power)
calibrations = st.sampled_from([IDEAL, public_calibration(), IDEAL.model_copy(update={"contention": 0.5})])


@st.composite
def plans(draw: st.DrawFn) -> Inputs:
    """Plans of all shapes on clusters of all speeds, with all kernel sets."""
    inputs = draw(valid_plans())
    cluster = with_devices(inputs.cluster, peak=draw(powers), memory=draw(powers))
    cluster = with_links(cluster, bandwidth=draw(powers), latency=draw(powers))
    execution = inputs.plan.execution.model_copy(update={"kernels": draw(st.sampled_from(list(KERNEL_SETS)))})
    return with_plan(inputs._replace(cluster=cluster), execution=execution)


def states_of(inputs: Inputs) -> list[float]:
    """Bytes of parameters, gradients and optimizer states of a rank of each group. Layers that share a parameter are
    left out: under zero3 it is sharded with the last of them, whose row may have fewer ways.
    """
    assume(is_legal(inputs))
    placement = Placement(inputs)
    found = dict.fromkeys(placement.running, 0.0)
    tied = {name for owner, copies in inputs.model.tied_layers for name in (owner, *copies)}
    for block in placement.blocks:
        if tied.intersection(block.names):
            continue
        states = layer_states(placement, block)
        found[block.group] += len(block.names) * (states.parameters + states.gradients + states.optimizer)
    return list(found.values())


def never_more(found: Sequence[Sequence[float]]) -> bool:
    """Whether no figure of a row is more than the same figure of the row before."""
    return all(after <= before * ROUNDING for rows in pairwise(found) for before, after in zip(*rows, strict=True))


def is_legal(inputs: Inputs) -> bool:
    """Whether a plan has a meaning."""
    return not any(problem.severity == "error" for problem in check_plan(inputs))


def peaks(inputs: Inputs) -> list[float]:
    """Bytes of a rank of each group at its peak."""
    return [each.peak for each in plan_memory(Placement(inputs))]


def seconds(inputs: Inputs, calibration: Calibration) -> float:
    """Of a step."""
    return estimate_plan(inputs, calibration).step_time_s


# Laws


@LAWS
@given(plans(), st.integers(1, 3))
def test_a_further_state_never_needs_more_memory_for_states(inputs: Inputs, axes: int) -> None:
    assert never_more([states_of(with_rows(inputs, sharded(state, axes))) for state in (None, *STATES)])


@LAWS
@given(plans(), st.sampled_from(STATES))
def test_a_wider_shard_group_never_needs_more_memory_for_states(inputs: Inputs, state: str) -> None:
    assert never_more([states_of(with_rows(inputs, sharded(state, axes))) for axes in (0, 1, 2, 3)])


def needed(placement: Placement, group: str) -> float:
    """Seconds of a group's share of the FLOPs that the model needs, on all of its devices at their peaks."""
    flops = sum(
        len(block.names) * sum(needed_flops(share) for share in placement.whole_shares(block))
        for block in placement.blocks
        if block.group == group
    )
    dtype = placement.recipe.precision.compute
    devices = placement.inputs.cluster.devices
    peaks = (
        min(count, pool.compute_units or count) * devices[pool.device].peak[dtype]
        for pool, count in placement.pools(group)
    )
    return flops / sum(peaks)


@LAWS
@given(plans(), calibrations)
def test_no_time_lies_under_the_roofline(inputs: Inputs, calibration: Calibration) -> None:
    found, placement = estimate_plan(inputs, calibration), Placement(inputs, calibration)
    assert found.mfu <= ROUNDING
    for group, busy in zip(placement.running, found.timeline.busy, strict=True):
        assert needed(placement, group) <= busy * ROUNDING
        assert busy <= found.step_time_s * ROUNDING


@LAWS
@given(plans(), st.sampled_from(sorted(BETTER)), st.sampled_from([1.1, 2.0, 30.0]), calibrations)
def test_a_better_cluster_is_never_slower(before: Inputs, what: str, times: float, calibration: Calibration) -> None:
    after = before._replace(cluster=BETTER[what](before.cluster, times))
    assert seconds(after, calibration) <= seconds(before, calibration) * ROUNDING


@LAWS
@given(plans(), st.sampled_from(["h100", "a100-80gb", "v100", "a100-pcie-80gb"]), st.data(), calibrations)
def test_devices_of_two_nodes_never_beat_those_of_one(
    inputs: Inputs, kind: str, data: st.DataObject, calibration: Calibration
) -> None:
    size = sum(group.size for group in inputs.plan.groups.values())
    assume(size > 1)
    cluster = parse_cluster(f"2x{size}x{kind}")
    shift = data.draw(st.integers(1, size - 1))
    moved = {
        name: group.model_copy(update={"devices": tuple(device + shift for device in group.devices)})
        for name, group in inputs.plan.groups.items()
    }
    one = inputs._replace(cluster=cluster)
    two = with_plan(one, groups=moved)
    assume(is_legal(one))
    assert seconds(one, calibration) <= seconds(two, calibration) * ROUNDING


@LAWS
@given(plans(), calibrations)
def test_more_recompute_is_never_faster_and_never_takes_more_memory(inputs: Inputs, calibration: Calibration) -> None:
    found = [with_rows(inputs, recomputed(what)) for what in ("none", "selective", "full")]
    assert never_more([[seconds(each, calibration)] for each in reversed(found)])
    assert never_more([peaks(each) for each in found])


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev"])
@pytest.mark.parametrize("kernels", list(KERNEL_SETS))
def test_more_recompute_takes_no_more_memory_where_backwards_come_in_halves(schedule: Any, kernels: Any) -> None:
    """The second half of a backward uses what the first has put away: what that computed again is gone by then."""
    given_to = gpt2(), mw.cluster("2xh100"), mw.recipe(global_batch=8, sequence=64)
    found = []
    for recompute in ("none", "selective", "full"):
        asked = {"recompute": recompute, "schedule": schedule, "kernels": kernels}
        found.append(peaks(Inputs(mw.uniform_plan(*given_to, pp=2, micro_batches=4, **asked), *given_to)))
    assert never_more(found)


figures = st.lists(st.sampled_from([0.0, 0.0, 1.0, 4.0, 9.5]), min_size=5, max_size=5)
streams = st.builds(Streams, st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 0.09, 0.5]))


def pass_seconds(layers: Sequence[Sequence[float]], streams: Streams, host: _Host) -> float:
    """Of layers by what they compute, gather, reduce, copy and launch."""
    spent = Spent()
    _pass(spent, [OneWay(Spent({"forward": computing}), *others) for computing, *others in layers], streams, host)
    return spent.total


@settings(LAWS, max_examples=300)
@given(st.lists(figures, min_size=1, max_size=3), streams, st.booleans(), st.floats(0.1, 10))
def test_a_layer_that_takes_more_never_shortens_a_pass(
    layers: list[list[float]], streams: Streams, ahead: bool, more: float
) -> None:
    """Computing, gathers, reductions, copies and launches hide behind each other, and none makes up for another."""
    host = _Host(1.0, ahead=ahead)
    before = pass_seconds(layers, streams, host)
    for place, figure in product(range(len(layers)), range(5)):
        longer = [list(layer) for layer in layers]
        longer[place][figure] += more
        assert before <= pass_seconds(longer, streams, host) * ROUNDING
