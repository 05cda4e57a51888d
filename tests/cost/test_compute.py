"""Seconds of operators by the roofline."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.calibration import DeviceConstants
from meshwright.cost.casts import Narrow
from meshwright.cost.compute import (
    Machine,
    Seconds,
    layer_load,
    layer_seconds,
    load_of,
    loads_of,
    machines,
    needed_flops,
    operator_seconds,
)
from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.cost.uses import Storage
from meshwright.model.operators import Attention, Linear, Norm, Operator
from meshwright.model.work import Work
from meshwright.plan.spec import Recompute, Save
from tests.cost.build import QUICK, inputs, llama

MACHINE = Machine(compute=1e12, matmul=1e12, memory=1e9)
ENDLESS = Machine(compute=1e6, matmul=1e6, memory=1e15)
"""Bound by FLOPs alone."""
WORK = Work(samples=2, length=64, context=64)
CORE = Attention(heads=4, kv_heads=4, head_dim=16)


def share(operator: Operator, **fields: Any) -> Share:
    """An operator with all its gradients."""
    return Share(operator, WORK, **{"learns": operator.parameters() > 0, "passes": True} | fields)


def timed(one: Share, kernels: str, machine: Machine) -> Seconds:
    """One operator without recompute."""
    return operator_seconds(load_of(one, KERNEL_SETS[kernels], Storage()), Storage(), machine)


def layer_timed(shares: list[Share], recompute: Recompute, kernels: str, machine: Machine) -> Seconds:
    """A layer of these operators."""
    loads = loads_of(shares, KERNEL_SETS[kernels], Storage())
    return layer_seconds(
        layer_load(shares, loads, recompute), [operator_seconds(load, Storage(), machine) for load in loads]
    )


@pytest.mark.parametrize(
    ("machine", "seconds"),
    [
        (Machine(compute=1e6, matmul=1e6, memory=1e15), 2 * 128 * 64 * 32 / 1e6),
        (Machine(compute=1e15, matmul=1e15, memory=1e6), 2 * (128 * 64 + 128 * 32 + 64 * 32) / 1e6),
        (Machine(compute=1e6, matmul=1e6, memory=1e15, slowdown=2), 2 * 2 * 128 * 64 * 32 / 1e6),
    ],
    ids=["bound by FLOPs", "bound by memory", "on a shared unit"],
)
def test_a_matrix_takes_the_longer_of_its_flops_and_its_bytes(machine: Machine, seconds: float) -> None:
    one = timed(share(Linear(inputs=64, outputs=32)), "hf-sdpa", machine)
    assert one.forward == pytest.approx(seconds)


def test_products_with_weights_alone_run_in_a_narrow_dtype() -> None:
    """At its rate and with its bytes: 128 x 64 and 64 x 32 numbers of one byte are read, 128 x 32 of two written,
    beside a transposed copy of the input (`casts`).
    """
    quick = Machine(compute=1e6, matmul=1e9, memory=1e15)
    slow = Machine(compute=1e15, matmul=1e15, memory=1e6)
    matrix, core = (share(op) for op in (Linear(inputs=64, outputs=32), CORE))
    assert narrowed(matrix, quick).forward == pytest.approx(2 * 128 * 64 * 32 / 1e9)
    assert narrowed(matrix, quick).backward == pytest.approx(2 * 2 * 128 * 64 * 32 / 1e9)
    transposed = 128 * 64
    moved = 128 * 64 + 64 * 32 + 2 * 128 * 32 + transposed
    assert narrowed(matrix, slow).forward == pytest.approx(moved / 1e6)
    assert narrowed(core, quick) == timed(core, "megatron-flash", quick)


def narrowed(one: Share, machine: Machine) -> Seconds:
    """One operator where products with weights take one byte a number."""
    return operator_seconds(load_of(one, KERNEL_SETS["megatron-flash"], Storage(), Narrow(1)), Storage(), machine)


@pytest.mark.parametrize(
    ("fields", "products"),
    [({}, 2), ({"learns": False}, 1), ({"passes": False}, 1), ({"learns": False, "passes": False}, 0)],
    ids=["both gradients", "frozen", "nothing before it learns", "no gradient"],
)
def test_backward_does_a_product_for_each_gradient_that_is_wanted(fields: dict[str, bool], products: int) -> None:
    one = timed(share(Linear(inputs=64, outputs=32), **fields), "hf-sdpa", ENDLESS)
    assert one.backward == pytest.approx(products * one.forward)
    assert one.weight == pytest.approx(one.forward if fields.get("learns", True) else 0)


@pytest.mark.parametrize(
    ("kernels", "core", "forward", "backward"),
    [
        ("hf-eager", CORE, 1, 2),
        ("megatron-fused", CORE, 1, 2),
        ("megatron-flash", CORE, 0.5, 1.25),
        ("hf-sdpa", CORE.model_copy(update={"causal": False}), 1, 2.5),
        ("hf-sdpa", CORE.model_copy(update={"window": 16}), 7 / 32, 7 / 32 * 2.5),
        ("hf-sdpa", CORE.model_copy(update={"cross": "frames"}), 1, 2.5),
        ("hf-sdpa", CORE.model_copy(update={"causal": False, "value_dim": CORE.head_dim // 2}), 1, 2 + 2 / 3),
    ],
    ids=["eager", "fused", "causal", "both ways", "a window", "another stream", "narrow values"],
)
def test_flash_attention_skips_what_is_masked_and_computes_scores_again(
    kernels: str, core: Attention, forward: float, backward: float
) -> None:
    one = timed(share(core), kernels, ENDLESS)
    square = core.flops(WORK).forward / ENDLESS.compute
    assert (one.forward / square, one.backward / square) == pytest.approx((forward, backward))


@QUICK
@given(
    compute=st.floats(1e9, 1e15),
    memory=st.floats(1e6, 1e13),
    faster=st.floats(1, 50),
    kernels=st.sampled_from(list(KERNEL_SETS)),
)
def test_a_faster_device_is_never_slower(compute: float, memory: float, faster: float, kernels: str) -> None:
    layer = [share(Norm(kind="rms", width=64)), share(Linear(inputs=64, outputs=64)), share(CORE)]

    def total(machine: Machine) -> float:
        return sum(layer_timed(layer, "full", kernels, machine))

    before = total(Machine(compute, compute, memory))
    assert total(Machine(compute * faster, compute * faster, memory)) <= before
    assert total(Machine(compute, compute, memory * faster)) <= before


@pytest.mark.parametrize(
    ("recompute", "again"),
    [
        ("none", []),
        ("full", [Norm, Linear, Attention]),
        ("selective", [Attention]),
        (Save(save=("matmul",)), [Norm, Attention]),
        (Save(save=("matmul", "attention")), [Norm]),
    ],
    ids=["none", "full", "selective", "matmuls saved", "all but the norm saved"],
)
def test_recompute_runs_again_what_it_does_not_keep(recompute: Any, again: list[type]) -> None:
    layer = [share(Norm(kind="rms", width=64)), share(Linear(inputs=64, outputs=64)), share(CORE)]
    spent = layer_timed(layer, recompute, "hf-sdpa", MACHINE)
    forward = [timed(one, "hf-sdpa", MACHINE).forward for one in layer]
    expected = sum(time for one, time in zip(layer, forward, strict=True) if type(one.operator) in again)
    assert spent.recompute == pytest.approx(expected)


def test_what_wants_no_gradient_has_no_backward_and_no_recompute() -> None:
    still = share(Linear(inputs=64, outputs=64), learns=False, passes=False)
    spent = layer_timed([still], "full", "hf-sdpa", MACHINE)
    assert (spent.recompute, spent.backward) == (0, 0)
    assert spent.forward > 0


@pytest.mark.parametrize(
    ("cluster", "ranks", "slowdown"), [("cpu:4/2", 4, 2), ("cpu:4/2", 2, 1), ("cpu:4", 4, 1), ("cpu:8/4", 8, 2)]
)
def test_ranks_that_share_cores_slow_each_other_down(cluster: str, ranks: int, slowdown: float) -> None:
    placement = Placement(inputs(llama(), cluster, {"all": ranks}, {"all": "dp"}))
    assert [machine.slowdown for machine in machines(placement, "g0")] == [slowdown]


def test_a_group_on_two_kinds_of_devices_has_two_machines() -> None:
    recipe = {"precision": {"compute": "fp16"}}
    placement = Placement(inputs(llama(), "2xh100+2xv100", {"all": 4}, {"all": "dp"}, recipe=recipe))
    assert [machine.compute for machine in machines(placement, "g0")] == [989.4e12, 125e12]


def test_matrices_may_multiply_in_a_narrower_dtype() -> None:
    recipe = {"precision": {"matmul": "fp8"}}
    [machine] = machines(Placement(inputs(llama(), "8xh100", {"all": 8}, {"all": "dp"}, recipe=recipe)), "g0")
    assert (machine.compute, machine.matmul) == (989.4e12, 1978.9e12)


def test_what_a_model_needs_counts_causal_attention_as_half_and_no_recompute() -> None:
    assert needed_flops(share(CORE)) == 3 * CORE.flops(WORK).forward / 2
    matrix = Linear(inputs=64, outputs=32)
    assert needed_flops(share(matrix)) == 3 * matrix.flops(WORK).forward


def test_each_kernel_takes_its_start() -> None:
    """A norm of eight kernels, and sixteen in backward; recompute starts those of forward again."""
    norm = share(Norm(kind="rms", width=64))
    started = MACHINE._replace(reached=DeviceConstants(start=1e-3))
    free, paid = (layer_timed([norm], "full", "hf-eager", machine) for machine in (MACHINE, started))
    more = [b - a for a, b in zip(free, paid, strict=True)]
    assert more == pytest.approx([8e-3, 8e-3, 16e-3, 0, 0])


def test_exponentials_slow_small_heads_more() -> None:
    """Where they take as long as the products at a head dimension of 32, heads of 16 take three times as long as
    without them, and heads of 64 half as long again; in backward, of which each has five products for two, 2/5 of that.
    """
    slow = ENDLESS._replace(reached=DeviceConstants(softmax=32))
    ratios = []
    for size in (16, 64):
        core = share(CORE.model_copy(update={"head_dim": size}))
        free, slowed = (timed(core, "megatron-flash", machine) for machine in (ENDLESS, slow))
        ratios.append((slowed.forward / free.forward, slowed.backward / free.backward))
    assert ratios == [pytest.approx((3, 1.8)), pytest.approx((1.5, 1.2))]


def test_short_sequences_and_narrow_windows_pay_for_their_ends() -> None:
    """32 positions more to 128 are a quarter more; to a window of 64, half as much again."""
    ends = ENDLESS._replace(reached=DeviceConstants(edge=32))
    for window, more in ((None, 1.25), (64, 1.5)):
        core = share(CORE.model_copy(update={"window": window}))._replace(work=Work(1, 128, 128))
        free, paid = (timed(core, "megatron-flash", machine) for machine in (ENDLESS, ends))
        assert (paid.forward / free.forward, paid.backward / free.backward) == pytest.approx((more, more))


def test_gradients_for_what_several_matrices_read_are_added_up_unless_these_are_one() -> None:
    """16 x 64 numbers of two bytes are read twice and written, beside products that take no time."""
    again = share(Linear(inputs=64, outputs=32))._replace(fresh=False)
    streaming = Machine(compute=1e18, matmul=1e18, memory=1e6, reached=DeviceConstants())
    parted, joined = (timed(again, kernels, streaming).backward for kernels in ("hf-sdpa", "megatron-flash"))
    assert parted - joined == pytest.approx(3 * 2 * again.work.positions * 64 / 1e6)


def test_copies_around_flash_attention_take_time_besides() -> None:
    """Unpadded: of inputs as much is read as written, and of outputs zeros besides."""
    core, machine = share(CORE)._replace(keys=64), Machine(compute=1e18, matmul=1e18, memory=1e6)
    apart = timed(core, "hf-unpadded-xentropy", machine).forward - timed(core, "hf-sdpa-xentropy", machine).forward
    numbers = core.work.positions * CORE.head_dim
    inputs = numbers * (CORE.heads + 2 * CORE.kv_heads)
    assert apart == pytest.approx(2 * (2 * inputs + 3 * numbers * CORE.heads) / 1e6)


def test_scores_that_are_written_out_take_no_exponentials_of_flash_attention() -> None:
    slow = ENDLESS._replace(reached=DeviceConstants(softmax=32))
    assert timed(share(CORE), "hf-eager", slow) == timed(share(CORE), "hf-eager", ENDLESS)


@pytest.mark.parametrize(
    ("kernels", "reached", "slower"),
    [
        ("megatron-flash", DeviceConstants(flash=0.25, flash_backward=0.2), (4, 5)),
        ("megatron-flash", DeviceConstants(flash=0.25, own_flash=0.5, own_flash_backward=0.4), (2, 2.5)),
        ("hf-sdpa", DeviceConstants(flash=0.25, flash_backward=0.2, own_flash=0.5, own_flash_backward=0.4), (4, 5)),
        ("hf-sdpa-xentropy", DeviceConstants(flash=0.5, flash_backward=0.4, early_flash=0.5), (4, 5)),
    ],
    ids=["none known", "the maker's", "another package's", "an early version"],
)
def test_who_calls_the_makers_attention_reaches_what_that_reaches(
    kernels: str, reached: DeviceConstants, slower: tuple[float, float]
) -> None:
    free, paid = (timed(share(CORE), kernels, ENDLESS._replace(reached=each)) for each in (DeviceConstants(), reached))
    assert (paid.forward / free.forward, paid.backward / free.backward) == pytest.approx(slower)
