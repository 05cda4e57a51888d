"""The shapes of products add up to the FLOPs of their operators, and no kernel beats its roofline."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.calibration import DeviceConstants
from meshwright.cost.efficiency import Peaks, product_seconds, tile_waste
from meshwright.cost.products import Product, gradients, products
from meshwright.model.operators import (
    Add,
    Attention,
    Contrast,
    Convolution,
    Experts,
    Linear,
    MatMul,
    Operator,
    Router,
    Scan,
)
from meshwright.model.work import Work
from tests.cost.build import QUICK

OPERATORS: list[Operator] = [
    Linear(inputs=12, outputs=20),
    MatMul(inner=6, outputs=10),
    MatMul(inner=6, outputs=10, gradients=1, cross="frames"),
    MatMul(inner=6, outputs=10, gradients=0),
    Contrast(width=6),
    Router(hidden=16, experts=4, top_k=2),
    Attention(heads=4, kv_heads=2, head_dim=8, value_dim=4, window=3),
    Experts(count=4, top_k=2, hidden=8, ffn=24),
    Experts(count=4, top_k=2, hidden=8, ffn=24, gated=False),
    Convolution(inputs=6, outputs=8, kernel=(3, 3), groups=2),
    Convolution(inputs=6, outputs=8, kernel=(2,), input_positions=3, transposed=True),
    Convolution(inputs=6, outputs=6, kernel=(4,), groups=6, surplus=3),
    Scan(width=8, state=4),
    Scan(width=8, heads=3, state=4, chunk=4),
    Add(width=8),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.op)
def test_products_make_up_the_flops(operator: Operator) -> None:
    work = Work(2, 6, 10)
    found, flops = products(operator, work), operator.flops(work)
    assert sum(product.flops for product in found) == pytest.approx(flops.forward)
    backward = sum(product.flops for side in gradients(operator, found) for product in side)
    assert backward == pytest.approx(flops.backward)


def test_every_operator_with_flops_has_a_shape() -> None:
    """An operator without one would take no time."""
    kinds = get_args(get_args(Operator)[0])
    assert {type(operator) for operator in OPERATORS} >= {kind for kind in kinds if "flops" in vars(kind)}


sizes = st.integers(1, 5000)
shapes = st.builds(Product, sizes, sizes, sizes, st.integers(1, 64))
fractions = st.floats(0.05, 1)
constants = st.builds(
    DeviceConstants, matmul=fractions, memory=fractions, inner=st.floats(0, 500), units=st.integers(1, 160)
)


@QUICK
@given(shapes, constants, st.floats(1e9, 1e15), st.floats(1e8, 1e13), st.sampled_from([0.5, 1, 2, 4, 8]))
def test_no_product_is_faster_than_its_roofline(
    product: Product, reached: DeviceConstants, peak: float, bandwidth: float, element: float
) -> None:
    roofline = max(product.flops / peak, product.numbers * element / bandwidth)
    assert product_seconds(product, Peaks(peak, bandwidth, element), reached) >= roofline * (1 - 1e-12)
    assert product_seconds(product, Peaks(peak, bandwidth, element), DeviceConstants()) == pytest.approx(roofline)


@QUICK
@given(shapes, constants, st.floats(1, 10))
def test_a_faster_device_never_takes_longer(product: Product, reached: DeviceConstants, gain: float) -> None:
    before = product_seconds(product, Peaks(1e12, 1e11, 2), reached)
    assert product_seconds(product, Peaks(1e12 * gain, 1e11 * gain, 2), reached) <= before * (1 + 1e-12)


@QUICK
@given(shapes, st.integers(1, 160))
def test_tiles_never_save_anything(product: Product, units: int) -> None:
    assert tile_waste(product, units) >= 1


@pytest.mark.parametrize(
    ("product", "units", "waste"),
    [
        (Product(256, 128, 64, 108), 108, 1.0),
        (Product(256, 128, 64, 109), 108, 5 * 108 * 128 * 64 / (109 * 256 * 128) / 0.8),
        (Product(1, 64 * 108, 64), 108, 64 / 0.6),
    ],
    ids=["a full wave", "one tile more", "a single row"],
)
def test_a_wave_that_is_not_full_costs_as_much_as_one_that_is(product: Product, units: int, waste: float) -> None:
    """By hand: of 109 tiles of 256 x 128 the last would take a second wave, and five waves of 128 x 64 are quicker; a
    single row fills a 64th of the smallest tiles.
    """
    assert tile_waste(product, units) == pytest.approx(waste)


@pytest.mark.parametrize(
    ("product", "aligned"),
    [
        (Product(2048, 50304, 768), True),
        (Product(2048, 50257, 768), False),
        (Product(2048, 2048, 150), False),
        (Product(2047, 64, 64), True),
        (Product(9, 4.5, 64), True),
    ],
    ids=["a padded vocabulary", "GPT-2's own", "heads of 150", "any number of rows", "a share of columns"],
)
def test_rows_in_memory_begin_at_multiples_of_sixteen_bytes_or_products_slow_down(
    product: Product, aligned: bool
) -> None:
    for batched, name in ((False, "unaligned"), (True, "unaligned_batched")):
        plain, slowed = (
            product_seconds(product, Peaks(1e9, 1e15, 2), DeviceConstants(**{name: each}), batched=batched)
            for each in (1.0, 0.25)
        )
        assert slowed / plain == pytest.approx(1 if aligned else 4)
