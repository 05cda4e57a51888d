"""What of a layer's exchanges hides behind its own computing, in whole plans."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster import facts
from meshwright.cost.calibration import IDEAL, Calibration
from meshwright.cost.estimate import Estimate, estimate_plan
from meshwright.cost.hiding import product_left, ring_left, tensor_left
from meshwright.cost.layer_times import LayerSeconds, time_layer
from meshwright.cost.placement import Placement
from meshwright.cost.wires import Wires
from meshwright.plan.spec import Execution
from tests.cost.build import QUICK, inputs, llama

WIDE = llama(hidden_size=4096, intermediate_size=8192, vocab_size=8192, num_attention_heads=32)
seconds = st.floats(0, 100)


def ring(sequence: int, overlap: tuple[str, ...], **asked: Any) -> LayerSeconds:
    """A layer of a ring of four nodes of one device, one sample a micro-batch."""
    settings: dict[str, Any] = {"batch": 4, "micro_batches": 4, "execution": {"overlap": list(overlap)}} | asked
    placement = Placement(inputs(WIDE, "4x1xh100", {"all": 4}, {"all": "cp"}, sequence=sequence, **settings), IDEAL)
    return time_layer(placement, Wires(placement), placement.block_of["decoder.1"])


def waits(layer: LayerSeconds) -> tuple[float, float]:
    """Seconds that it waits for keys and values, forward and backward."""
    return layer.forward.spent.parts.get("sequence", 0.0), layer.backward.spent.parts.get("sequence", 0.0)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_ring_hides_where_blocks_are_long(recompute: str) -> None:
    """A message grows with a block's length, its attention with the square of it (Liu 2023, section 3)."""
    assert min(waits(ring(2**17, (), recompute=recompute))) > 0
    assert max(waits(ring(2**17, ("context",), recompute=recompute))) == 0


def test_a_ring_of_short_blocks_waits_for_what_attention_does_not_fill() -> None:
    """By hand, forward: three messages of 2 KV heads of 128 numbers, keys and values, in bf16 for 1,024 positions, each
    beside a quarter of the attention of 1,024 to 4,096 positions, of which the mask leaves half. Backward sends twice
    as much.
    """
    placement = Placement(inputs(WIDE, "4x1xh100", {"all": 4}, {"all": "cp"}, sequence=4096), IDEAL)
    link = Wires(placement).network.cluster.links["ib-ndr400"]
    send = link.latency + 2 * 1024 * 2 * 2 * 128 / link.bandwidth
    block = 4 * 32 * 128 * 1024 * 1024 * (4096 + 1) / (2 * 4096) / 989.4e12
    forward, backward = waits(ring(4096, ("context",)))
    assert forward == pytest.approx(3 * (send - block), rel=1e-3)
    assert forward < waits(ring(4096, ()))[0] == pytest.approx(3 * send)
    assert backward < waits(ring(4096, ()))[1] == pytest.approx(6 * send)


def test_rings_hide_by_default_and_over_gloo_never() -> None:
    assert "context" in Execution().overlap
    fp32 = {"precision": {"compute": "fp32"}}
    apart, beside = (
        estimate_plan(
            inputs(WIDE, "cpu:4", {"all": 4}, {"all": "cp"}, recipe=fp32, execution={"overlap": overlap}), IDEAL
        )
        for overlap in ([], ["context", "tensor"])
    )
    assert apart.parts["sequence"] == beside.parts["sequence"] > 0


@QUICK
@given(seconds, seconds, st.integers(2, 64), st.floats(0, 1))
def test_a_ring_waits_at_least_for_what_does_not_fit_and_at_most_for_all(
    sent: float, attention: float, ranks: int, contention: float
) -> None:
    fits = attention * (ranks - 1) / ranks
    assert max(0.0, sent - fits) - 1e-9 <= ring_left(sent, attention, ranks, contention) <= sent + 1e-9


@QUICK
@given(seconds, seconds, st.integers(1, 64))
def test_a_piece_of_an_exchange_stays_and_all_of_it_where_there_is_one(
    exchanged: float, computing: float, pieces: int
) -> None:
    left = tensor_left(exchanged, computing, pieces)
    assert exchanged / pieces - 1e-9 <= left <= exchanged + 1e-9
    assert pieces > 1 or left == pytest.approx(exchanged)


@QUICK
@given(seconds, seconds, st.integers(1, 64), st.floats(0, 1), st.floats(0, 1))
def test_the_less_hides_in_practice_the_more_stays(
    exchanged: float, computing: float, pieces: int, hidden: float, more: float
) -> None:
    """From all of it, where nothing hides, to what stays where all does that can."""
    low, high = sorted((hidden, more))
    left = [tensor_left(exchanged, computing, pieces, share) for share in (1, high, low, 0)]
    assert left == sorted(left)
    assert left[-1] == exchanged


@pytest.mark.parametrize(("hidden", "stays"), [(1.0, 1 / 4), (0.5, 5 / 8), (0.0, 1.0)])
def test_a_calibration_says_how_much_of_tensor_exchanges_hides(hidden: float, stays: float) -> None:
    """Of four pieces one stays, and of the other three what does not hide."""
    reached = IDEAL.model_copy(update={"hidden": hidden})
    apart, beside = parts_apart(()), parts_apart(("tensor",), reached)
    assert beside.parts["tensor"] == pytest.approx(apart.parts["tensor"] * stays)


def parts_apart(overlap: tuple[str, ...], calibration: Calibration = IDEAL) -> Estimate:
    """Samples divided over four devices in attention, and the MLP's width."""
    rows: list[dict[str, Any]] = [
        {"span": "embed"},
        {"span": "decoder.0-3"},
        {"span": "decoder.0-3", "part": "mlp", "roles": {"all": "tp"}},
        {"span": "head"},
    ]
    asked = inputs(
        WIDE, "4xh100", {"all": 4}, {"all": "dp"}, rows=rows, batch=64, sequence=1024, micro_batches=4,
        execution={"overlap": list(overlap)},
    )  # fmt: skip
    return estimate_plan(asked, calibration)


def test_each_part_is_cut_by_its_own_ranks() -> None:
    """The first part has no tensor parallelism; of the MLP's exchanges one of four pieces stays."""
    apart, beside = parts_apart(()), parts_apart(("tensor",))
    assert beside.parts["tensor"] == pytest.approx(apart.parts["tensor"] / 4)


@QUICK
@given(seconds, seconds, st.floats(0, 1))
def test_of_an_exchange_beside_a_product_at_least_what_does_not_fit_stays(
    exchanged: float, computing: float, contention: float
) -> None:
    stays = product_left(exchanged, computing, contention)
    assert max(0.0, exchanged - computing) <= stays * (1 + 1e-9) + 1e-9
    assert stays <= exchanged * (1 + contention) * (1 + 1e-9) + 1e-9


def cut(split: str, kernels: str, overlap: tuple[str, ...], sequence: int = 4096) -> tuple[float, float]:
    """Seconds that a wide layer on two tensor ranks waits for exchanges, forward and backward."""
    asked: dict[str, Any] = {"execution": {"overlap": list(overlap), "kernels": kernels}, "sequence": sequence}
    placement = Placement(inputs(WIDE, "2xh100", {"t": 2}, {"t": split}, batch=1, **asked), IDEAL)
    layer = time_layer(placement, Wires(placement), placement.block_of["decoder.1"])
    forward, backward = (way.spent.parts.get("tensor", 0.0) for way in (layer.forward, layer.backward))
    return forward, backward


@pytest.mark.parametrize(("split", "kernels", "stays"), [("tp", "megatron-fused", 0.0), ("tp+sp", "nanotron", 1 / 2)])
def test_sums_of_inputs_gradients_hide_beside_the_products_for_weights(split: str, kernels: str, stays: float) -> None:
    """Forward's exchanges wait as before, and of backward's the gathers for matrices that are cut by rows alone, each
    of which takes as long as the scattering of a sum.
    """
    apart, beside = cut(split, kernels, ()), cut(split, kernels, ("weights",))
    assert beside[0] == apart[0] > 0
    assert beside[1] == pytest.approx(stays * apart[1])


def test_what_is_gathered_again_for_weights_hides_beside_the_products_for_inputs() -> None:
    """Backward gathers twice for matrices cut by rows, twice again for those cut by columns, and scatters twice."""
    apart, beside = (cut("tp+sp", "megatron-flash", overlap) for overlap in ((), ("weights",)))
    assert beside[1] == pytest.approx(apart[1] / 3)


def test_a_sum_hides_beside_the_product_of_its_own_matrix_alone() -> None:
    """By hand, two ranks of 4,096 positions: the sum for queries has 2 x 4,096 x 4,096 bytes, and its own product
    4,096 x 2,048 x 4,096 multiplications; those of keys and values, which read the same, wait for it. That of the
    MLP's gate is as long again, and hides its sum.
    """
    link = facts.link("nvlink4")
    sum_of_queries = 2 * (link.latency + 2 * 4096 * 4096 / 2 / link.bandwidth)
    product = 2 * 4096 * 2048 * 4096 / 989.4e12
    assert cut("tp", "hf-sdpa", ("weights",))[1] == pytest.approx(sum_of_queries - product, rel=1e-3)
    assert cut("tp", "megatron-fused", ("weights",))[1] == 0
