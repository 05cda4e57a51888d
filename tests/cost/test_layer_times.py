"""What hides behind computing, and what does not, in whole plans."""

from typing import Any

import pytest

from meshwright.cluster import facts
from meshwright.cluster.resolve import resolve_cluster
from meshwright.cost.calibration import IDEAL, Calibration
from meshwright.cost.estimate import Estimate, estimate_plan
from meshwright.cost.layer_times import LayerSeconds, OneWay, Spent, _rows, adding_up, time_layer
from meshwright.cost.offload import host_link
from meshwright.cost.overlap import Streams, one_pass
from meshwright.cost.placement import Placement
from meshwright.cost.volumes import block_flows
from meshwright.cost.wires import Wires
from tests.cost.build import inputs, llama

WIDE = llama(hidden_size=4096, intermediate_size=8192, vocab_size=8192)


def found(
    roles: dict[str, str],
    *,
    cluster: str = "4x1xh100",
    overlap: tuple[str, ...] = ("gathers", "gradients"),
    calibration: Calibration = IDEAL,
    **asked: Any,
) -> Estimate:
    """A wide Llama on four nodes of one device."""
    settings: dict[str, Any] = {"batch": 16, "sequence": 1024, "micro_batches": 4} | asked
    execution = {"overlap": list(overlap)} | settings.pop("execution", {})
    mesh = settings.pop("mesh", {"all": 4})
    return estimate_plan(inputs(WIDE, cluster, mesh, roles, execution=execution, **settings), calibration)


@pytest.mark.parametrize(("role", "part"), [("dp", "gradients"), ("dp/zero3", "gathers")])
def test_what_overlaps_takes_less_time_but_never_less_than_computing(role: str, part: str) -> None:
    apart, beside = found({"all": role}, overlap=()), found({"all": role}, overlap=(part,))
    assert beside.parts["state"] < apart.parts["state"]
    for name in ("forward", "backward", "optimizer"):
        assert beside.parts[name] == pytest.approx(apart.parts[name], rel=1e-12)


def test_over_gloo_nothing_overlaps() -> None:
    fp32 = {"precision": {"compute": "fp32"}}
    apart, beside = (found({"all": "dp/zero3"}, cluster="cpu:4", overlap=o, recipe=fp32) for o in ((), ("gathers",)))
    assert beside.step_time_s == apart.step_time_s


def test_more_prefetch_is_never_slower() -> None:
    times = [found({"all": "dp/zero3"}, execution={"prefetch": depth}).step_time_s for depth in (0, 1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert times[1] < times[0]


def test_contention_makes_what_overlaps_slower() -> None:
    contended = IDEAL.model_copy(update={"contention": 0.5})
    free, slowed = (
        found({"all": "dp/zero3"}, cluster="4xh100", batch=64, calibration=each) for each in (IDEAL, contended)
    )
    assert slowed.step_time_s > free.step_time_s


def test_tensor_exchanges_cut_into_pieces_leave_one_of_them() -> None:
    """One of four pieces stays where computing is longer than the exchange, as in all layers but the embedding."""
    apart, beside = (found({"all": "tp"}, cluster="4xh100", overlap=overlap, batch=64) for overlap in ((), ("tensor",)))
    assert apart.parts["tensor"] / 4 <= beside.parts["tensor"] < apart.parts["tensor"] * 0.3


@pytest.mark.parametrize("what", ["optimizer", "parameters", "activations"])
def test_offload_costs_time_and_saves_memory(what: str) -> None:
    before = found({"all": "dp"}, cluster="4xh100")
    after = found({"all": "dp"}, cluster="4xh100", offload={what: "cpu"})
    assert after.step_time_s > before.step_time_s
    assert after.memory_peak_bytes < before.memory_peak_bytes


def test_an_offloaded_optimizer_takes_its_copies_and_the_hosts_memory() -> None:
    """By hand: gradients of 4 bytes down, parameters of 2 up over PCIe 5 at what the catalogue gives, then 34 bytes a
    parameter in a sixteenth of a node's 614.4 GB/s for each of eight devices.
    """
    after = found({"all": "dp"}, cluster="8xh100", mesh={"all": 1}, offload={"optimizer": "cpu"})
    pcie = resolve_cluster("8xh100").links["pcie5"].bandwidth
    expected = WIDE.parameters * (6 / pcie + 34 / (614.4e9 / 8))
    assert after.parts["offload"] == pytest.approx(expected)


def copied(**asked: Any) -> tuple[float, float]:
    """Bytes that one decoder layer copies from and to its host for a micro-batch, forward and backward."""
    settings: dict[str, Any] = {"batch": 16, "sequence": 1024, "micro_batches": 4, "roles": {"all": "dp"}} | asked
    placement = Placement(inputs(WIDE, "4xh100", {"all": 4}, **settings), IDEAL)
    block = placement.block_of["decoder.1"]
    timed, host = time_layer(placement, Wires(placement), block), host_link(placement, block.group)
    assert host is not None
    return timed.forward.copied * host.bandwidth, timed.backward.copied * host.bandwidth


def test_offloaded_activations_are_copied_as_far_as_recompute_keeps_them() -> None:
    """Under full recompute the layer's input alone: one sample of 1,024 positions and 4,096 numbers in bf16."""
    size = 2 * 1024 * 4096
    assert copied(offload={"activations": "cpu"}, recompute="full") == pytest.approx((size, size))
    assert copied(offload={"activations": "cpu"})[0] > 10 * size


def test_gradients_that_are_scattered_after_each_micro_batch_go_to_the_host_after_each() -> None:
    """zero1 sends them down once, when the step ends; zero2 a quarter of 4 bytes a parameter after each backward."""
    [decoder] = [stack for stack in WIDE.stacks if stack.span.startswith("decoder")]
    once, each = (copied(offload={"optimizer": "cpu"}, roles={"all": role}) for role in ("dp/zero1", "dp/zero2"))
    assert once == (0, 0)
    assert each == pytest.approx((0, 4 * decoder.parameters / 4))


def test_offloaded_parameters_of_layers_without_backward_come_up_once() -> None:
    """Frozen layers before all that learn: 2 bytes a parameter for forward alone."""
    frozen = {"trainable": {"frozen": ["embed", "decoder.0-3"]}}
    given = inputs(WIDE, "4xh100", {"all": 4}, {"all": "dp"}, recipe=frozen, offload={"parameters": "cpu"})
    placement = Placement(given, IDEAL)
    block = placement.block_of["decoder.1"]
    timed, host = time_layer(placement, Wires(placement), block), host_link(placement, block.group)
    assert host is not None
    assert timed.forward.gather == pytest.approx(2 * block.stack.parameters / host.bandwidth)
    assert timed.backward.gather == 0


def added_up(role: str, **asked: Any) -> float:
    """Seconds of a decoder layer's backward for a micro-batch that go to adding up its gradients: those that the same
    layer does not take where a single micro-batch's are the step's.
    """
    many, once = (backward_of(role, micro_batches=count, batch=4 * count, **asked) for count in (4, 1))
    return many - once


def backward_of(role: str, **asked: Any) -> float:
    """Seconds of a decoder layer's backward, but for exchanges."""
    placement = Placement(inputs(WIDE, "4xh100", {"all": 4}, {"all": role}, sequence=64, **asked), IDEAL)
    return time_layer(placement, Wires(placement), placement.block_of["decoder.1"]).backward.spent.parts["backward"]


@pytest.mark.parametrize(("role", "ways"), [("dp", 1), ("dp/zero1", 1), ("dp/zero2", 4), ("dp/zero3", 4), ("tp", 4)])
def test_gradients_are_added_up_where_they_are_kept(role: str, ways: int) -> None:
    """2 bytes read, 4 read and 4 written, at 3.35 TB/s, of the numbers that a device keeps of them: under tp all of two
    norms, and half of what makes two KV heads, which are copied to four ranks.
    """
    layer = next(stack for stack in WIDE.stacks if stack.span.startswith("decoder"))
    norms, heads = 2 * 4096, 2 * 4096 * 2 * 1024
    whole = norms * (1 - 1 / ways) + heads * (1 / 2 - 1 / ways) if role == "tp" else 0
    kept = layer.parameters / ways + whole
    assert added_up(role) == pytest.approx(10 * kept / 3.35e12)


@pytest.mark.parametrize(
    ("execution", "ways"), [({"sync": "last"}, 1), ({"sync": "each"}, 4)], ids=["kept whole", "scattered each time"]
)
def test_zero3_that_scatters_once_adds_up_whole_gradients(execution: dict[str, str], ways: int) -> None:
    layer = next(stack for stack in WIDE.stacks if stack.span.startswith("decoder"))
    found = added_up("dp/zero3", execution=execution)
    assert found == pytest.approx(10 * layer.parameters / ways / 3.35e12)


def test_gradients_that_are_reduced_in_bf16_are_added_up_in_bf16() -> None:
    """2 bytes read, 2 read and 2 written."""
    layer = next(stack for stack in WIDE.stacks if stack.span.startswith("decoder"))
    found = added_up("dp", recipe={"precision": {"reduce": "bf16"}})
    assert found == pytest.approx(6 * layer.parameters / 3.35e12)


@pytest.mark.parametrize(
    ("kernels", "once", "often"), [("hf-sdpa", 0, 1), ("megatron-fused", 1, 1), ("megatron-flash", 0, 0)]
)
def test_who_keeps_a_buffer_adds_to_it_and_who_adds_in_a_product_takes_no_time(
    kernels: str, once: int, often: int
) -> None:
    """Against frozen layers, whose backward computes no gradients of weights, in units of 10 bytes a parameter."""
    layer = next(stack for stack in WIDE.stacks if stack.span.startswith("decoder"))
    for count, times in ((1, once), (4, often)):
        asked: dict[str, Any] = {"micro_batches": count, "batch": 4 * count, "execution": {"kernels": kernels}}
        placement = Placement(inputs(WIDE, "4xh100", {"all": 4}, {"all": "dp"}, sequence=64, **asked), IDEAL)
        block = placement.block_of["decoder.1"]
        whole = time_layer(placement, Wires(placement), block).backward.spent.parts["backward"]
        [work] = _rows(placement, block)
        added = (whole - work.computing.backward) / (10 * layer.parameters / 3.35e12)
        assert added == pytest.approx(times, abs=1e-9)


def test_links_that_reach_less_take_longer() -> None:
    half = Calibration.parse(
        "meshwright_calibration: 1\nname: half\nsource: test\nother_links: {bandwidth: 0.5}\n", "half.yaml"
    )
    full, slowed = (found({"all": "dp"}, overlap=(), calibration=each) for each in (IDEAL, half))
    assert 1.9 < slowed.parts["state"] / full.parts["state"] <= 2


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_every_schedule_of_single_stages_is_estimated(schedule: str) -> None:
    one = found({"all": "dp"}, mesh={"all": 1}, pp=4, micro_batches=8, schedule=schedule)
    assert 0 < one.bubble < 0.6


def test_backwards_in_halves_shorten_the_bubble_and_keep_more() -> None:
    whole, halves = (
        found({"all": "dp"}, mesh={"all": 1}, pp=4, micro_batches=8, schedule=schedule)
        for schedule in ("1f1b", "zb-h1")
    )
    assert halves.bubble < whole.bubble
    assert halves.memory_peak_bytes >= whole.memory_peak_bytes


def test_no_product_adds_the_gradient_of_a_table() -> None:
    """In bf16 zeros are written; then it is read, and what it is added to in float32 read and written."""
    given = inputs(llama(), "1xh100", {"x": 1}, {"x": "dp"}, execution={"kernels": "megatron-flash"})
    placement = Placement(given, IDEAL)
    table, layer = (placement.block_of[name] for name in ("embed", "decoder.0"))
    memory = placement.inputs.cluster.devices["h100"].memory_bandwidth
    numbers = sum(operator.parameters() for operator in table.stack.operators)
    assert adding_up(placement, table) == pytest.approx(numbers * (2 + 2 + 2 * 4) / memory)
    assert adding_up(placement, layer) == 0


def zero3(kernels: str) -> LayerSeconds:
    """A layer over four nodes of one device."""
    execution = {"kernels": kernels}
    placement = Placement(inputs(llama(), "4x1xh100", {"all": 4}, {"all": "dp/zero3"}, execution=execution), IDEAL)
    return time_layer(placement, Wires(placement), placement.block_of["decoder.1"])


def test_what_is_gathered_matrix_by_matrix_is_gathered_in_as_many_pieces() -> None:
    """Seven matrices of a Llama layer, which take as many latencies; the bytes are the same."""
    whole, pieces = zero3("hf-eager"), zero3("mingpt")
    latency = facts.link("ib-ndr400").latency
    steps = 2  # of a tree over four ranks
    assert (whole.forward.pieces, pieces.forward.pieces) == (1, 7)
    assert pieces.forward.gather - whole.forward.gather == pytest.approx(6 * steps * latency, rel=1e-6)
    assert [sum(time.gather for time in layer.forward.times) for layer in (whole, pieces)] == pytest.approx(
        [whole.forward.gather, pieces.forward.gather]
    )


def test_of_pieces_the_first_alone_is_waited_for_where_the_others_hide() -> None:
    way = OneWay(Spent({"forward": 7.0}), gather=3.5, pieces=7)
    passed = one_pass([time for layer in (way, way) for time in layer.times], Streams())
    assert passed.exposed == pytest.approx(3.5 / 7)


def test_owners_of_whole_tensors_broadcast_them_one_after_the_other() -> None:
    """Nine tensors of a Llama layer, 39 in all: each is sent round 64 ranks. Where ranks are fewer, each sends its
    tensors at once. Gradients are summed by all.
    """
    found = {}
    for cluster, ranks in (("8x8xa100-80gb", 64), ("1x8xa100-80gb", 8)):
        execution = {"kernels": "internevo"}
        given = inputs(llama(), cluster, {"all": ranks}, {"all": "dp/zero1"}, batch=ranks, execution=execution)
        flows = block_flows(Placement(given), Placement(given).block_of["decoder.1"])
        assert {flow.kind for flow in flows} == {"all_reduce", "broadcast"}
        [sent] = [flow for flow in flows if flow.kind == "broadcast"]
        found[ranks] = sent.times, sent.bytes * sent.times
    assert (found[64][0], found[8][0]) == (9, 2)
    assert found[64][1] == found[8][1]
