"""Whole plans: the parts add up, the laws hold, the words say what the numbers do."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from meshwright.cluster.spec import Cluster
from meshwright.cost.calibration import IDEAL
from meshwright.cost.compute import Machine, layer_load, layer_seconds, loads_of, operator_seconds
from meshwright.cost.estimate import Estimate, estimate_plan, model_flops, peak_flops
from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.placement import Placement
from meshwright.cost.uses import Storage
from meshwright.cost.volumes import step_collectives
from meshwright.errors import PlanError
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rules import Inputs
from tests.cost.build import inputs, llama
from tests.plan.strategies import valid_plans

PLANS = sorted((Path(__file__).parents[1] / "plans").glob("*.yaml"))


def read(path: Path) -> Inputs:
    """A golden plan with its inputs."""
    return read_inputs(path)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_golden_plan_is_estimated(path: Path) -> None:
    given_inputs = read(path)
    found = estimate_plan(given_inputs)
    assert 0.05 < found.mfu < 0.8
    assert [each.group for each in found.memory] == list(dict.fromkeys(stage.on for stage in given_inputs.plan.stages))


RAN = (
    "bloom-176b",
    "hsdp-llama-2-7b",
    "internevo-7b-zero1-8",
    "lora-llama-2-70b",
    "mixtral-8x22b-expert-tp",
    "zero-offload-70b",
)
"""Golden plans whose sources ran them."""


@pytest.mark.parametrize("name", RAN)
def test_plans_that_were_run_fit(name: str) -> None:
    found = estimate_plan(read(next(path for path in PLANS if path.stem == name)))
    assert all(each.out_of_memory < 0.5 for each in found.memory), found.verdict


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(valid_plans())
def test_whatever_has_a_meaning_has_an_estimate(given_inputs: Inputs) -> None:
    found = estimate_plan(given_inputs)
    assert 0 < found.step_time_s < math.inf
    assert 0 < found.mfu <= 1
    assert sum(found.parts.values()) == pytest.approx(found.step_time_s)
    sizes = [size for each in found.memory for instant in each.instants for size in instant.parts.values()]
    assert all(0 <= size < math.inf for size in sizes)
    assert all(one.bytes > 0 and one.count > 0 and len(one.ranks) > 1 for one in step_collectives(given_inputs))


def small(cluster: Cluster | str = "8xh100", roles: dict[str, str] | None = None, **asked: Any) -> Inputs:
    """A Llama that is wide enough to compute more than it waits, on four GPUs by default."""
    model = llama(hidden_size=4096, intermediate_size=8192, vocab_size=8192)
    settings: dict[str, Any] = {"batch": 16, "sequence": 1024, "micro_batches": 4} | asked
    mesh = settings.pop("mesh", {"dp": 2, "tp": 2})
    return inputs(model, cluster, mesh, roles or {"dp": "dp", "tp": "tp"}, **settings)


def test_one_device_takes_the_sum_of_its_operators() -> None:
    given_inputs = small("1xh100", {"all": "dp"}, mesh={"all": 1}, recipe={"clip_norm": None})
    placement, total = Placement(given_inputs), 0.0
    machine = Machine(989.4e12, 989.4e12, 3.35e12)
    for block in placement.blocks:
        for shares in placement.shares(block):
            loads = loads_of(shares, KERNEL_SETS["hf-sdpa"], Storage())
            seconds = [operator_seconds(load, Storage(), machine) for load in loads]
            one = layer_seconds(layer_load(shares, loads, "none"), seconds)
            total += 4 * len(block.names) * (one.forward + one.backward)
    table = 8192 * 4096
    added_up = 4 * ((2 + 2 * 4) * given_inputs.model.parameters + 2 * table) / 3.35e12
    optimizer = (4 + 4 * 4 + 2 * 4 + 2) * given_inputs.model.parameters / 3.35e12
    assert estimate_plan(given_inputs, IDEAL).step_time_s == pytest.approx(total + added_up + optimizer)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"pp": 2},
        {"recompute": "full"},
        {"roles": {"dp": "dp/zero3", "tp": "tp+sp"}},
        {"roles": {"dp": "cp", "tp": "ulysses"}},
    ],
    ids=["dp and tp", "pp", "full recompute", "zero3 and sp", "cp and ulysses"],
)
@pytest.mark.parametrize("kernels", list(KERNEL_SETS))
def test_time_is_never_under_the_roofline_nor_under_a_stage_at_work(asked: dict[str, Any], kernels: str) -> None:
    given_inputs = small(execution={"kernels": kernels}, **asked)
    found, placement = estimate_plan(given_inputs), Placement(given_inputs)
    assert found.step_time_s >= model_flops(placement) / peak_flops(placement)
    for stage in range(len(given_inputs.plan.stages)):
        busy = sum(span.end - span.start for span in found.timeline.spans if span.stage == stage)
        assert busy <= found.step_time_s * (1 + 1e-12)


def faster(cluster: Cluster, what: str) -> Cluster:
    """The cluster with twice as fast links, memory or arithmetic."""
    if what == "links":
        links = {
            name: link.model_copy(update={"bandwidth": 2 * link.bandwidth}) for name, link in cluster.links.items()
        }
        return cluster.model_copy(update={"links": links})
    changes = {
        name: {"memory_bandwidth": 2 * device.memory_bandwidth}
        if what == "memory"
        else {"peak": {dtype: 2 * peak for dtype, peak in device.peak.items()}}
        for name, device in cluster.devices.items()
    }
    devices = {name: device.model_copy(update=changes[name]) for name, device in cluster.devices.items()}
    return cluster.model_copy(update={"devices": devices})


@pytest.mark.parametrize("what", ["links", "memory", "arithmetic"])
@pytest.mark.parametrize(
    "asked", [{}, {"pp": 2}, {"roles": {"dp": "dp/zero3", "tp": "tp+sp"}}], ids=["dp", "pp", "zero3"]
)
def test_a_better_cluster_is_never_slower(what: str, asked: dict[str, Any]) -> None:
    before = small("2x4xh100", **asked)
    after = before._replace(cluster=faster(before.cluster, what))
    assert estimate_plan(after).step_time_s < estimate_plan(before).step_time_s


def test_two_nodes_never_beat_one() -> None:
    one, two = (estimate_plan(small(cluster)) for cluster in ("4xh100", "2x2xh100"))
    assert two.step_time_s > one.step_time_s


@pytest.mark.parametrize("recompute", ["selective", "full", {"save": ["matmul"]}], ids=str)
@pytest.mark.parametrize("kernels", list(KERNEL_SETS))
def test_recompute_never_takes_less_time_nor_more_memory(recompute: Any, kernels: str) -> None:
    execution = {"kernels": kernels}
    before, after = (estimate_plan(small(recompute=kind, execution=execution)) for kind in ("none", recompute))
    assert after.step_time_s >= before.step_time_s
    held = [next(i for i in found.memory[0].instants if i.name == "backward").parts for found in (before, after)]
    assert held[1]["activations"] <= held[0]["activations"]


def test_ranks_on_half_as_many_cores_compute_for_twice_as_long() -> None:
    shared, own = (
        estimate_plan(small(cluster, {"all": "dp"}, mesh={"all": 4}, recipe={"precision": {"compute": "fp32"}}))
        for cluster in ("cpu:4/2", "cpu:4")
    )
    assert shared.parts["forward"] == pytest.approx(2 * own.parts["forward"])
    assert shared.parts["state"] == pytest.approx(own.parts["state"])


@pytest.mark.parametrize(
    ("cluster", "ranks", "devices"),
    [("cpu:4", 4, 4), ("cpu:4/2", 4, 2), ("cpu:4/2", 2, 2), ("cpu:4/3", 2, 2), ("cpu:4/1", 4, 1)],
)
def test_ranks_that_share_cores_have_no_more_peak_than_the_cores(cluster: str, ranks: int, devices: int) -> None:
    fp32 = {"precision": {"compute": "fp32"}}
    given_inputs = small(cluster, {"all": "dp"}, mesh={"all": ranks}, recipe=fp32)
    assert peak_flops(Placement(given_inputs)) == devices * given_inputs.cluster.device_of(0).peak["fp32"]


def test_the_parts_of_the_busiest_stage_add_up_to_the_step() -> None:
    found = estimate_plan(small(pp=2, recompute="full", roles={"dp": "dp/zero1", "tp": "tp+sp"}))
    assert sum(found.parts.values()) == pytest.approx(found.step_time_s)
    assert all(
        found.parts[name] > 0 for name in ("forward", "recompute", "backward", "optimizer", "tensor", "state", "bubble")
    )


def test_equal_stages_have_the_closed_forms_bubble() -> None:
    """Two stages of two layers each, their ends aside: (P - 1) / (M + P - 1) at least."""
    found = estimate_plan(small(pp=2, micro_batches=8))
    assert 1 / 9 < found.bubble < 1 / 4


def test_zero3_pays_for_its_gathers_in_time() -> None:
    whole, sharded = (estimate_plan(small(roles={"dp": role, "tp": "tp"})) for role in ("dp", "dp/zero3"))
    assert sharded.parts["state"] > whole.parts["state"]
    assert sharded.memory_peak_bytes < whole.memory_peak_bytes


def narrow_and_wide(kernels: str, batch: int) -> tuple[Estimate, Estimate]:
    """With products in fp8, and without."""
    asked: dict[str, Any] = {"batch": batch, "execution": {"kernels": kernels}}
    narrow, wide = (small(recipe={"precision": {"matmul": dtype}}, **asked) for dtype in ("fp8", None))
    return estimate_plan(narrow, IDEAL), estimate_plan(wide, IDEAL)


@pytest.mark.parametrize(("kernels", "batch"), [("megatron-flash", 16), ("hf-sdpa", 128)])
def test_narrow_products_run_faster_on_devices_that_have_them(kernels: str, batch: int) -> None:
    narrow, wide = narrow_and_wide(kernels, batch)
    assert narrow.parts["forward"] < wide.parts["forward"]
    assert narrow.mfu < wide.mfu


def test_casting_weights_to_narrow_numbers_costs_more_than_it_saves_where_positions_are_few() -> None:
    """Of a weight that 2,048 positions meet, fp8 saves 2 x 2048 (1 / 989.4e12 - 1 / 1978.9e12) s = 2.1 ps of products;
    to read it twice and write it twice takes 6 / 3.35e12 s = 1.8 ps, and its input and output are cast besides.
    """
    narrow, wide = narrow_and_wide("hf-sdpa", 16)
    assert narrow.parts["forward"] > wide.parts["forward"]


def big(**asked: Any) -> Estimate:
    """Llama 3.1 70B on eight H100."""
    return estimate_plan(inputs("llama-3.1-70b", "8xh100", {"all": 8}, {"all": "dp/zero3"}, sequence=8192, **asked))


def test_a_plan_that_does_not_fit_says_where_when_and_by_how_much() -> None:
    found = big()
    over = found.memory[0].footprint.device.middle - 81559 * 2**20
    assert not found.fits
    assert found.verdict.startswith("does not fit: ")
    assert "(stage 0 on group g0, at backward)" in found.verdict
    assert f"{over / 2**30:.3g} GiB too many" in found.verdict
    assert "the largest part activations" in found.verdict


def test_a_plan_that_fits_perhaps_says_how_likely_it_does_not() -> None:
    """Between the middle of the range and its top."""
    before = small()
    need = estimate_plan(before).memory[0].footprint.device
    device = before.cluster.devices["h100"].model_copy(update={"memory": (need.middle + need.high) / 2})
    found = estimate_plan(before._replace(cluster=before.cluster.model_copy(update={"devices": {"h100": device}})))
    assert not found.fits
    assert found.verdict.startswith("may not fit: ")
    assert f"out of memory with a probability of {found.memory[0].out_of_memory:.0%}" in found.verdict


def test_a_plan_that_fits_says_how_fast_it_is() -> None:
    found = estimate_plan(small())
    assert found.verdict.startswith("fits: ")
    assert "tokens/s, MFU" in found.verdict


def test_tokens_per_second_are_the_batchs_positions_over_the_step() -> None:
    found = estimate_plan(small())
    assert found.tokens_per_s == 16 * 1024 / found.step_time_s


def test_the_data_is_plain() -> None:
    found = estimate_plan(small(pp=2))
    data = json.loads(json.dumps(found.as_data()))
    wanted = {"step_time_s", "tokens_per_s", "mfu", "memory_peak_bytes", "fits", "verdict", "parts", "groups"}
    assert wanted <= set(data)
    assert [group["stages"] for group in data["groups"]] == [[0], [1]]
    assert data["groups"][0]["memory"]["backward"]["total"] == found.memory[0].peak


def test_the_timeline_covers_every_action() -> None:
    found = estimate_plan(small(pp=2, micro_batches=4))
    kinds = [span.kind for span in found.timeline.spans]
    assert (kinds.count("forward"), kinds.count("backward"), kinds.count("optimizer")) == (8, 8, 2)
    assert max(span.end for span in found.timeline.spans) == found.step_time_s


def test_a_plan_without_meaning_is_refused_with_all_its_problems() -> None:
    given_inputs = small(batch=15)
    with pytest.raises(PlanError, match="the plan has no meaning") as caught:
        estimate_plan(given_inputs)
    assert "micro-batches-divide-the-batch" in str(caught.value)


def test_what_the_rules_warn_of_is_noted() -> None:
    """Of hosts that the cluster says nothing of, for one."""
    [note] = estimate_plan(small("4xa800", offload={"optimizer": "cpu"})).notes
    assert "neither the time of offload's copies nor the memory that they fill is counted" in note
    assert estimate_plan(small("4xh100", offload={"optimizer": "cpu"})).notes == ()


def test_a_plan_for_16384_devices_is_estimated_at_once() -> None:
    """Llama 3.1 405B, 16 stages of 1,024 devices, 128 micro-batches: about 45 ms of one core; the limit leaves room."""
    given_inputs = inputs(
        "llama-3.1-405b",
        "2048x8xh100",
        {"dp": 128, "tp": 8},
        {"dp": "dp/zero1", "tp": "tp+sp"},
        pp=16,
        batch=128 * 128,
        sequence=8192,
        micro_batches=128,
        execution={"kernels": "megatron-flash"},
    )
    spent = []
    for _ in range(5):
        start = time.process_time()
        found = estimate_plan(given_inputs)
        spent.append(time.process_time() - start)
    assert len(found.timeline.spans) > 16 * 256
    assert min(spent) < 0.15
