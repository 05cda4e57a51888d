"""What offload fills: the host of each node, and the verdict on it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.activations import layer_activations
from meshwright.cost.calibration import IDEAL
from meshwright.cost.estimate import estimate_plan
from meshwright.cost.host import HostMemory, host_memory
from meshwright.cost.layer_states import States, layer_states, states_away
from meshwright.cost.placement import Placement
from meshwright.cost.verdict import judge_memory
from meshwright.plan.rules import Inputs, check_plan
from meshwright.report.check import judge
from tests.cost.build import QUICK, inputs, llama

N = 8_030_261_248
"""Parameters of Llama 3.1 8B."""
ALL = {"optimizer": "cpu", "parameters": "cpu", "activations": "cpu"}


def llama_8b(role: str = "dp/zero3", offload: dict[str, str] | None = None, **asked: Any) -> Inputs:
    """On eight H100."""
    mesh, cluster = asked.pop("mesh", {"all": 8}), asked.pop("cluster", "8xh100")
    return inputs("llama-3.1-8b", cluster, mesh, dict.fromkeys(mesh, role), offload=offload or ALL, **asked)


def hosts(given_inputs: Inputs) -> tuple[HostMemory, ...]:
    """Of a plan."""
    return host_memory(Placement(given_inputs, IDEAL))


def resting(host: HostMemory) -> dict[str, float]:
    """What it keeps throughout."""
    return next(instant.parts for instant in host.instants if instant.name == "initialisation")


@pytest.mark.parametrize(
    ("role", "offload", "bytes_each"),
    [
        pytest.param("dp/zero3", ALL, 18, id="DeepSpeed's ZeRO-3 with both: 18 bytes"),
        pytest.param("dp/zero2", {"optimizer": "cpu"}, 16, id="DeepSpeed's ZeRO-2 with its optimizer: 16 bytes"),
        pytest.param("dp/zero3", {"parameters": "cpu"}, 2, id="bf16 parameters alone"),
        pytest.param("dp", {"optimizer": "cpu"}, 8 * 16, id="eight copies"),
        pytest.param("dp/zero1", {"optimizer": "cpu"}, 16, id="zero1 steps a shard"),
    ],
)
def test_a_node_keeps_the_bytes_of_all_its_ranks(role: str, offload: dict[str, str], bytes_each: int) -> None:
    """`estimate_zero3_model_states_mem_needs` and its sister for ZeRO-2, in DeepSpeed's deepspeed/runtime/zero."""
    [host] = hosts(llama_8b(role, offload))
    assert sum(resting(host).values()) == bytes_each * N


def test_a_plan_without_offload_fills_no_host() -> None:
    assert hosts(llama_8b(offload={"optimizer": None})) == ()  # type: ignore[dict-item]


def test_nodes_of_one_group_share_what_it_shards_and_stand_in_one_entry() -> None:
    [host] = hosts(llama_8b(cluster="2x8xh100", mesh={"node": 2, "gpu": 8}))
    assert (host.alike, host.node, host.ranks) == (2, 0, 8)
    assert sum(resting(host).values()) == 18 * N / 2


@pytest.mark.parametrize("kernels", ["megatron-flash", "hf-sdpa"])
def test_the_host_keeps_the_activations_of_the_micro_batches_in_flight(kernels: str) -> None:
    """Of two stages under 1f1b the first has two in flight; both are in one node, and their peaks add up."""
    given_inputs = llama_8b(
        "dp",
        {"activations": "cpu"},
        mesh={"all": 4},
        pp=2,
        micro_batches=4,
        execution={"kernels": kernels},
    )
    placement = Placement(given_inputs)
    away = [
        sum(len(block.names) * layer_activations(placement, block).away for block in placement.stage_blocks(stage))
        for stage in (0, 1)
    ]
    [host] = host_memory(placement)
    assert host.stages == (0, 1)
    assert host.peak == pytest.approx(4 * (2 * away[0] + away[1]))
    assert host.worst.name == "backward"


@pytest.mark.parametrize(("kernels", "in_flight"), [("hf-sdpa", 3), ("megatron-flash", 2)])
def test_where_the_first_half_of_a_backward_lets_nothing_go_the_host_keeps_it_till_the_second(
    kernels: str, in_flight: int
) -> None:
    """zb-h1 puts the weights of the second of three stages off by one micro-batch."""
    execution = {"kernels": kernels}
    given_inputs = llama_8b(
        "dp",
        {"activations": "cpu"},
        cluster="3x1xh100",
        mesh={"all": 1},
        pp=3,
        micro_batches=6,
        schedule="zb-h1",
        execution=execution,
    )
    placement = Placement(given_inputs)
    middle = hosts(given_inputs)[1]
    [block] = placement.stage_blocks(1)
    away = len(block.names) * layer_activations(placement, block).away
    assert middle.peak == pytest.approx(in_flight * away)


ROLES = st.sampled_from(["dp", "dp/zero1", "dp/zero2", "dp/zero3"])


@QUICK
@given(ROLES, st.sampled_from([{"optimizer": "cpu"}, {"parameters": "cpu"}, ALL]), st.sampled_from(["each", "last"]))
def test_what_offload_takes_off_the_device_is_on_the_host(role: str, offload: dict[str, str], sync: str) -> None:
    """Parameters and optimizer states to the byte; gradients that come down at the end have a place on both. Under
    zero3 parameters in bf16 come besides: on devices FSDP shards their masters alone.
    """
    asked: dict[str, Any] = {"execution": {"sync": sync}}
    home, away = (
        Placement(inputs(llama(), "4xh100", {"all": 4}, {"all": role}, offload=offloaded, **asked))
        for offloaded in ({}, offload)
    )
    for before, after in zip(home.blocks, away.blocks, strict=True):
        kept, here, there = layer_states(home, before), layer_states(away, after), states_away(away, after)
        assert states_away(home, before) == States()
        expected = 2 * before.stack.parameters / 4 if role == "dp/zero3" else kept.parameters
        assert (expected, kept.optimizer) == (here.parameters + there.parameters, here.optimizer + there.optimizer)
        assert here.gradients + there.gradients >= kept.gradients


@QUICK
@given(ROLES, ROLES)
def test_more_sharding_never_fills_the_host_more(one: str, other: str) -> None:
    less, more = sorted((one, other))
    assert hosts(llama_8b(more))[0].peak <= hosts(llama_8b(less))[0].peak


def big(cluster: str, ranks: int) -> Inputs:
    """Llama 3.1 405B with everything offloaded."""
    return inputs(
        "llama-3.1-405b",
        cluster,
        {"all": ranks},
        {"all": "dp/zero3"},
        sequence=8192,
        batch=ranks,
        recompute="full",
        offload=ALL,
    )


def test_what_the_host_cannot_keep_does_not_fit() -> None:
    """18 bytes of each of 405 billion parameters, and the layers' inputs, in 2 TiB."""
    verdict = judge_memory(big("8xh100", 8))
    assert all(each.fits for each in verdict.groups)
    [host] = verdict.hosts
    assert verdict.word == "does not fit"
    assert host.peak > 18 * 405e9
    assert verdict.sentence.startswith(
        f"{host.asked} of 2 TiB on the host of node 0 of pool 'h100' (stage 0, at backward)"
    )
    assert "6.62 TiB too many, the largest part optimizer (4.43 TiB)" in verdict.sentence
    assert judge(big("8xh100", 8), "meaning").judgement == "does-not-fit"


def test_the_same_fits_where_there_are_hosts_enough() -> None:
    found = estimate_plan(big("16x8xh100", 128))
    assert found.fits
    assert found.verdict.startswith("fits: ")
    assert [host["alike"] for host in found.as_data()["hosts"]] == [16]


def test_a_host_that_is_filled_to_its_middle_may_not_fit() -> None:
    before = llama_8b()
    [host] = host_memory(Placement(before))
    [pool] = before.cluster.pools
    assert pool.host is not None
    own = pool.host.model_copy(update={"memory": (host.asked.middle + host.asked.high) / 2})
    cluster = before.cluster.model_copy(update={"pools": (pool.model_copy(update={"host": own}),)})
    verdict = judge_memory(before._replace(cluster=cluster))
    assert (verdict.word, verdict.fits) == ("may not fit", False)
    assert "on the host of node 0 of pool 'h100'" in verdict.sentence.split("; ")[0]


def test_hosts_that_nothing_is_said_of_are_not_judged_but_told() -> None:
    given_inputs = llama_8b(cluster="8xa800")
    assert hosts(given_inputs) == ()
    [problem] = check_plan(given_inputs)
    assert (problem.rule, problem.severity) == ("offload-has-a-host", "warning")
    [note] = estimate_plan(given_inputs).notes
    assert "neither the time of offload's copies nor the memory that they fill is counted" in note
