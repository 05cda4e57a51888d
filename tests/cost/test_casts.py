"""What it takes to make numbers narrow, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.calibration import IDEAL
from meshwright.cost.casts import Narrow, casts
from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.layer_times import time_layer
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.cost.wires import Wires
from meshwright.model.operators import Attention, Convolution, Experts, Linear, Operator
from meshwright.model.work import Work
from tests.cost.build import QUICK, inputs, llama

WORK = Work(samples=2, length=8, context=8)
BEFORE, AT_HAND = KERNEL_SETS["megatron-flash"], KERNEL_SETS["hf-sdpa"]
"""Scales of the step before, and of the tensor at hand."""
FP8 = Narrow(1)
MATRIX, CORE = Linear(inputs=8, outputs=4), Attention(heads=2, kv_heads=2, head_dim=4)


def share(operator: Operator, *, learns: bool = True, passes: bool = True) -> Share:
    """An operator with its gradients on 16 positions."""
    return Share(operator, WORK, learns=learns, passes=passes)


def test_with_scales_of_the_step_before_a_transposed_copy_and_a_gradient_are_more() -> None:
    """A byte for each of 16 x 8 that are read; of the 16 x 4 gradients 2 bytes read and 1 written, twice."""
    assert casts(share(MATRIX), BEFORE, 2, FP8) == (16 * 8, (2 + 1 + 1) * 16 * 4)


def test_with_scales_at_hand_inputs_weights_and_gradients_are_read_twice() -> None:
    """2 + 2 bytes read, 1 + 1 written, of the 16 x 8 inputs, the 8 x 4 weights, and the 16 x 4 gradients."""
    assert casts(share(MATRIX), AT_HAND, 2, FP8) == (6 * (16 * 8 + 8 * 4), 6 * 16 * 4)


@pytest.mark.parametrize(
    ("gradients", "before", "at_hand"),
    [
        ({"learns": False}, (0, 3 * 64), (5 * 128 + 6 * 32, 5 * 64)),
        ({"passes": False}, (128, 4 * 64), (6 * 128 + 5 * 32, 6 * 64)),
        ({"learns": False, "passes": False}, (0, 0), (5 * 128 + 5 * 32, 0)),
    ],
    ids=["frozen", "nothing before it learns", "no gradient"],
)
def test_what_no_product_of_backward_wants_is_not_transposed(
    gradients: dict[str, bool], before: tuple[float, float], at_hand: tuple[float, float]
) -> None:
    one = share(MATRIX, **gradients)
    assert (casts(one, BEFORE, 2, FP8), casts(one, AT_HAND, 2, FP8)) == (before, at_hand)


def test_a_number_of_four_bits_is_written_in_half_a_byte() -> None:
    assert casts(share(MATRIX), BEFORE, 2, Narrow(0.5)) == (0.5 * 16 * 8, (2 + 0.5 + 0.5) * 16 * 4)


def test_experts_cast_what_each_of_their_matrices_reads_and_pad_what_comes_and_goes() -> None:
    """Twice 16 positions: 8 and 24 numbers are read, 2 x 24 (gate and up) and 8 put out; of four experts' weights. To
    multiples of 16, and back, go 8 numbers each way: read and written in two bytes.
    """
    experts = Experts(count=4, top_k=2, hidden=8, ffn=24)
    read, written, weights = 32 * (8 + 24), 32 * (48 + 8), 4 * 3 * 8 * 24
    padded = 2 * 32 * 8 * 2 * 2
    assert casts(share(experts), BEFORE, 2, FP8) == ((2 + 1 + 1) * read + padded, 4 * written + padded)
    assert casts(share(experts), AT_HAND, 2, FP8) == (6 * (read + weights), 6 * written)


def test_what_several_matrices_read_is_cast_once() -> None:
    again = share(MATRIX)._replace(fresh=False)
    assert casts(again, BEFORE, 2, FP8) == (0, (2 + 1 + 1) * 16 * 4)
    assert casts(again, AT_HAND, 2, FP8) == (6 * 8 * 4, 6 * 16 * 4)


def test_a_rank_casts_its_own_run_of_what_is_gathered_and_transposes_all_of_it() -> None:
    """Over four tensor ranks: 2 + 1 bytes of a quarter of the input and of the gradient, 1 of all; and the weights."""
    compiled, weights = KERNEL_SETS["torch-compile"], 4 * 8 * 4
    before, after = share(MATRIX)._replace(scattered=4), share(MATRIX)._replace(left=4)
    assert casts(before, compiled, 2, FP8) == (3 * 16 * 8 / 4 + 16 * 8 + weights, 4 * 16 * 4)
    assert casts(after, compiled, 2, FP8) == (4 * 16 * 8 + weights, 3 * 16 * 4 / 4 + 16 * 4)


@QUICK
@given(st.sampled_from(list(KERNEL_SETS)), st.sampled_from([1, 2, 8]), st.booleans(), st.booleans())
def test_scales_of_rows_never_cost_less(kernels: str, ranks: int, learns: bool, fresh: bool) -> None:
    one = share(MATRIX, learns=learns)._replace(scattered=ranks, left=ranks, fresh=fresh)
    sets = KERNEL_SETS[kernels]
    rows, tensors = (sum(casts(one, sets, 2, Narrow(1, by_rows))) for by_rows in (True, False))
    assert rows >= tensors


def test_a_convolution_casts_its_input_before_it_is_unfolded() -> None:
    """Two samples of 8 positions of 3 numbers, and of 8 of 6."""
    convolution = Convolution(inputs=3, outputs=6, kernel=(4,))
    assert casts(share(convolution), BEFORE, 2, FP8) == (2 * 8 * 3, 4 * 2 * 8 * 6)


@QUICK
@given(st.sampled_from(list(KERNEL_SETS)), st.sampled_from([0.5, 1]), st.booleans(), st.booleans(), st.booleans())
def test_what_has_no_weights_is_not_cast(
    kernels: str, narrow: float, by_rows: bool, learns: bool, passes: bool
) -> None:
    assert casts(share(CORE, learns=learns, passes=passes), KERNEL_SETS[kernels], 2, Narrow(narrow, by_rows)) == (0, 0)


def forward(layer: str, dtype: str | None) -> float:
    """Seconds of a layer's forward, with products in a dtype of their own."""
    precision = {"precision": {"matmul": dtype}}
    placement = Placement(inputs(llama(), "1xb200", {"all": 1}, {"all": "dp"}, recipe=precision), IDEAL)
    return time_layer(placement, Wires(placement), placement.block_of[layer]).forward.spent.parts["forward"]


@pytest.mark.parametrize("dtype", ["fp8", "fp4"])
def test_a_head_and_its_loss_stay_wide(dtype: str) -> None:
    assert forward("head", dtype) == forward("head", None)
    assert forward("decoder.1", dtype) != forward("decoder.1", None)
