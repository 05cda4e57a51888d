"""Experts over several ranks: what an uneven router, copies for nodes, and pairs of micro-batches change."""

from typing import Any

import pytest

from meshwright.cost.calibration import IDEAL
from meshwright.cost.estimate import Estimate, estimate_plan, model_flops
from meshwright.cost.layer_times import time_layer
from meshwright.cost.placement import Placement
from meshwright.cost.volumes import step_collectives
from meshwright.cost.wires import Wires
from meshwright.plan.rules import Inputs
from tests.cost.build import inputs, llama
from tests.plan.models import mixture

MIXTURE = mixture(llama(hidden_size=1024, intermediate_size=2048, vocab_size=8192), 16)
"""A dense layer, and three of 16 experts, of which two are chosen."""
EXPERTS = {"span": "decoder.1-3", "part": "experts", "roles": {"dp": "ep"}}
OVERLAP = ["gathers", "gradients", "context", "experts"]


def given(cluster: str = "2x8xh100", *, roles: str = "dp/zero1", experts: Any = EXPERTS, **asked: Any) -> Inputs:
    """The mixture on all devices of a cluster, its experts over all of them."""
    settings: dict[str, Any] = {"batch": 64, "sequence": 1024, "micro_batches": 4} | asked
    rows = [{"span": "embed"}, {"span": "decoder.0-3"}, experts, {"span": "head"}]
    return inputs(MIXTURE, cluster, {"dp": 16}, {"dp": roles}, rows=rows, **settings)


def found(cluster: str = "2x8xh100", **execution: Any) -> Estimate:
    """What the plan takes on machines without losses."""
    return estimate_plan(given(cluster, execution=execution), IDEAL)


def layer(inputs: Inputs) -> Any:
    """The times of a layer with experts."""
    placement = Placement(inputs, IDEAL)
    return time_layer(placement, Wires(placement), placement.block_of["decoder.2"])


def test_the_busiest_rank_receives_and_computes_more_and_keeps_more() -> None:
    even, crowded = found(), found(expert_imbalance=1.5)
    for name in ("forward", "backward", "expert"):
        assert even.parts[name] < crowded.parts[name] < 1.5 * even.parts[name]
    assert even.memory_peak_bytes < crowded.memory_peak_bytes < 1.5 * even.memory_peak_bytes


def test_imbalance_changes_nothing_but_what_experts_get() -> None:
    even, crowded = (Placement(given(execution={"expert_imbalance": each})) for each in (1.0, 1.5))
    assert model_flops(even) == model_flops(crowded)
    sizes = [{one: one.bytes for one in step_collectives(each.inputs)} for each in (even, crowded)]
    for one, size in zip(*(sorted(each.items(), key=str) for each in sizes), strict=True):
        assert size[1] == (1.5 if size[0].purpose == "expert" else 1) * one[1]


def test_experts_that_are_cut_too_are_summed_for_the_positions_that_a_rank_sent() -> None:
    """tp inside of experts sums a rank's own positions after they came back, however many came to its experts."""
    rows = [EXPERTS | {"roles": {"dp": "ep", "tp": "tp"}}]
    both = []
    for imbalance in (1.0, 1.5):
        asked = inputs(
            MIXTURE, "8xh100", {"dp": 4, "tp": 2}, {"dp": "dp", "tp": "tp"}, execution={"expert_imbalance": imbalance},
            rows=[{"span": "embed"}, {"span": "decoder.0-3"}, *rows, {"span": "head"}],
        )  # fmt: skip
        both.append([one for one in step_collectives(asked) if one.purpose == "tensor"])
    assert both[0] == both[1]


@pytest.mark.parametrize("cluster", ["2x8xh100", "16x1xh100", "4x4xh100"])
def test_a_copy_for_each_node_never_takes_longer_than_one_for_each_expert(cluster: str) -> None:
    assert found(cluster, dispatch="nodes").parts["expert"] <= found(cluster).parts["expert"]


def test_dispatch_to_nodes_takes_the_slower_of_both_links_by_hand() -> None:
    """Each rank has one of 16 experts and 1,024 positions of 1,024 numbers of a sample. The nodes of a position are
    2 (1 - 8 · 7 / (16 · 15)) in the mean, half of them its own; 7 of 8 of its two copies are handed on inside.
    """
    placement = Placement(given(execution={"dispatch": "nodes"}), IDEAL)
    wires, size = Wires(placement), 1024 * 1024 * 2.0
    outside, inside = (wires.network.cluster.links[name] for name in ("ib-ndr400", "nvlink4"))
    slower = max(
        size * (1 - 56 / 240) / outside.bandwidth + outside.latency,
        size * 2 * 7 / 8 / inside.bandwidth + 7 * inside.latency,
    )
    assert layer(given(execution={"dispatch": "nodes"})).forward.spent.parts["expert"] == pytest.approx(2 * slower)


def test_whatever_travels_the_bytes_counted_are_a_copy_for_each_expert() -> None:
    assert step_collectives(given(execution={"dispatch": "nodes"})) == step_collectives(given())


def test_a_pair_of_micro_batches_hides_what_it_sends_and_keeps_two_of_them() -> None:
    """Of four micro-batches on one stage the first forward and the last backward are alone, and three pairs between."""
    apart, beside = found(), found(overlap=OVERLAP)
    for name in ("forward", "backward"):
        assert beside.parts[name] == pytest.approx(apart.parts[name])
    assert apart.parts["expert"] / 4 <= beside.parts["expert"] < apart.parts["expert"]
    assert beside.step_time_s < apart.step_time_s
    assert beside.memory_peak_bytes > apart.memory_peak_bytes


def test_the_parts_of_a_step_in_pairs_add_up_to_it() -> None:
    beside = found(overlap=OVERLAP)
    assert sum(beside.parts.values()) == pytest.approx(beside.step_time_s)
    assert all(part >= 0 for part in beside.parts.values())


def test_over_gloo_no_pairs_are_made() -> None:
    fp32 = {"precision": {"compute": "fp32"}}
    plans = [given("cpu:16", recipe=fp32, execution={"overlap": overlap}) for overlap in ([], ["experts"])]
    apart, beside = (estimate_plan(each) for each in plans)
    assert beside.step_time_s == apart.step_time_s
