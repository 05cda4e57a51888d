"""A rank's share of a layer: what it computes and holds of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.placement import Placement
from meshwright.cost.shares import Extent, Learning, Share, elements, layer_shares
from meshwright.cost.ways import Ways
from meshwright.model.operators import (
    Attention,
    Dropout,
    Embedding,
    Experts,
    Linear,
    Loss,
    Norm,
    Operator,
    Router,
    Scan,
)
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec, Part
from meshwright.model.work import Work
from meshwright.recipe.spec import Lora
from tests.cost.build import QUICK, gpt2, inputs, llama

SAMPLES, LENGTH = 4, 32


def shares(model: ModelSpec, ways: Ways, learning: Learning | None = None, span: str = "decoder") -> list[Share]:
    """One layer's operators on one rank."""
    stack = next(stack for stack in model.stacks if stack.span.startswith(span))
    found = layer_shares(
        [(part, ways) for part in stack.parts], Extent(SAMPLES, {"tokens": LENGTH}, "tokens"), learning or Learning()
    )
    return [share for part in found for share in part]


def flops(found: list[Share]) -> float:
    """Forward."""
    return sum(share.operator.flops(share.work).forward for share in found)


@QUICK
@given(
    batch=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    ulysses=st.sampled_from([1, 2]),
    tensor=st.sampled_from([1, 2]),
    scattered=st.booleans(),
)
def test_all_ranks_together_do_the_flops_of_one(
    batch: int, cp: int, ulysses: int, tensor: int, scattered: bool
) -> None:
    ways = Ways(batch, cp, ulysses, tensor, tensor if scattered else 1)
    model = llama(num_key_value_heads=4)
    ranks = batch * cp * ulysses * tensor
    assert flops(shares(model, ways)) * ranks == flops(shares(model, Ways()))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2-xl"])
def test_forward_flops_are_two_per_parameter_and_position_and_the_scores(name: str) -> None:
    """2 N T without look-ups, and 4 s T d for scores and values of each layer (Kaplan 2020, section 2.1)."""
    model = resolve_model(name)
    found = [share for stack in model.stacks for share in shares(model, Ways(), span=stack.span)]
    layers = {stack.span: len([layer for layer in model.layers if layer.stack is stack]) for stack in model.stacks}
    total = sum(layers[stack.span] * flops(shares(model, Ways(), span=stack.span)) for stack in model.stacks)
    linear = sum(
        layers[stack.span] * op.inputs * op.outputs
        for stack in model.stacks
        for op in stack.operators
        if isinstance(op, Linear)
    )
    core = next(share.operator for share in found if isinstance(share.operator, Attention))
    body = layers[next(span for span in layers if span.startswith("decoder"))]
    tokens = SAMPLES * LENGTH
    assert isinstance(core, Attention)
    assert total == 2 * linear * tokens + body * 4 * LENGTH * tokens * core.heads * core.head_dim


@pytest.mark.parametrize(
    ("kv_heads", "tensor", "held"), [(4, 2, 2), (4, 4, 1), (2, 4, 1), (1, 4, 1)], ids=["two", "one", "a copy", "copies"]
)
def test_ranks_beyond_the_kv_heads_hold_copies(kv_heads: int, tensor: int, held: int) -> None:
    found = shares(llama(num_key_value_heads=kv_heads), Ways(tensor=tensor))
    core = next(share.operator for share in found if isinstance(share.operator, Attention))
    key = next(share.operator for share in found if share.operator.path.endswith("k_proj"))
    assert isinstance(core, Attention)
    assert isinstance(key, Linear)
    assert (core.heads, core.kv_heads, key.outputs) == (4 // tensor, held, held * core.head_dim)


def test_fused_segments_are_cut_each_by_itself() -> None:
    fused = next(share.operator for share in shares(gpt2(), Ways(tensor=4)) if share.operator.path.endswith("c_attn"))
    assert isinstance(fused, Linear)
    assert fused.outputs == 3 * 64 // 4


def test_norms_of_queries_and_keys_work_on_a_ranks_heads() -> None:
    model = resolve_model({"model_type": "qwen3", "num_hidden_layers": 1, "num_key_value_heads": 2})
    norms = [share.operator for share in shares(model, Ways(tensor=4)) if isinstance(share.operator, Norm)]
    assert [(norm.heads, norm.width) for norm in norms if norm.heads] == [(8, 128), (1, 128)]


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    found = shares(llama(vocab_size=130), Ways(tensor=4), span="embed")
    table = found[0].operator
    assert isinstance(table, Embedding)
    assert table.rows == 33


def test_sequence_parallel_ranks_have_a_run_of_positions_outside_of_the_matrices_alone() -> None:
    found = shares(llama(), Ways(tensor=4, scattered=4))
    length = {type(share.operator).__name__: share.work.length for share in found}
    assert (length["Norm"], length["Linear"], length["Attention"]) == (LENGTH / 4, LENGTH, LENGTH)


@pytest.mark.parametrize(
    ("ways", "length", "keys"),
    [(Ways(cp=4), 8, 8), (Ways(ulysses=4), 32, 32), (Ways(cp=2, ulysses=2), 16, 16)],
    ids=["ring", "ulysses", "both"],
)
def test_an_attention_core_looks_at_all_positions_from_its_own(ways: Ways, length: int, keys: int) -> None:
    core = next(share for share in shares(llama(), ways) if isinstance(share.operator, Attention))
    assert (core.work.length, core.work.context, core.keys) == (length, LENGTH, keys)


def test_one_all_reduce_each_way_surrounds_a_cut_block() -> None:
    found = shares(llama(), Ways(tensor=2))
    ends = [share.operator.path.rsplit(".", 1)[-1] for share in found if share.enters or share.leaves]
    assert ends == ["q_proj", "o_proj", "gate_proj", "down_proj"]


def test_neighbours_that_read_the_same_keep_it_once() -> None:
    fresh = [
        share.operator.path.rsplit(".", 1)[-1] for share in shares(llama(), Ways()) if share.fresh and _is_linear(share)
    ]
    assert fresh == ["q_proj", "o_proj", "gate_proj", "down_proj"]


def _is_linear(share: Share) -> bool:
    return isinstance(share.operator, Linear)


def test_adapters_alone_learn_and_the_first_of_them_starts_the_gradient() -> None:
    found = shares(llama(), Ways(), Learning(fed=False, lora=Lora(rank=2)))
    learning = [share for share in found if share.learns]
    assert [
        (share.operator.inputs, share.operator.outputs) for share in learning if isinstance(share.operator, Linear)
    ] == [
        (64, 2),
        (2, 64),
        (64, 2),
        (2, 32),
    ]
    assert [share.operator.path for share in found if not share.passes] == [
        share.operator.path for share in found[: found.index(learning[0]) + 1]
    ]


def test_adapters_of_a_column_cut_share_their_first_matrix() -> None:
    found = [share for share in shares(llama(), Ways(tensor=2), Learning(lora=Lora(rank=2))) if share.learns]
    assert [(share.operator.parameters(), share.partial) for share in found] == [
        (128, 128),
        (64, 0),
        (128, 128),
        (32, 0),
    ]


def test_what_sequence_parallel_ranks_all_hold_has_a_gradient_in_parts() -> None:
    found = shares(gpt2(), Ways(tensor=2, scattered=2))
    partial = {share.operator.path.rsplit(".", 1)[-1]: share.partial for share in found if share.partial}
    assert partial == {"ln_1": 128, "ln_2": 128, "c_proj": 64}


def test_experts_are_spread_and_cut() -> None:
    moe = Part(
        name="experts",
        operators=(
            Router(hidden=64, experts=8, top_k=2),
            Experts(count=8, top_k=2, hidden=64, ffn=96),
        ),
    )
    [[router, experts]] = layer_shares(
        [(moe, Ways(tensor=2, experts=4))], Extent(8, {"tokens": 16}, "tokens"), Learning()
    )
    assert isinstance(experts.operator, Experts)
    assert (experts.operator.count, experts.operator.ffn) == (2, 48)
    assert router.operator.parameters() == 64 * 8


@pytest.mark.parametrize("name", ["mamba-130m", "mamba-codestral-7b"])
def test_a_mixers_channels_are_cut_and_its_ends_are_whole(name: str) -> None:
    """Two ranks hold a half each of all but the norm before."""
    whole, halves = (shares(resolve_model(name), Ways(tensor=ways)) for ways in (1, 2))
    norm, *numbers = (share.operator.parameters() for share in whole)
    assert [share.operator.parameters() for share in halves] == [norm, *(number / 2 for number in numbers)]
    assert flops(halves) == flops(whole) / 2


@pytest.mark.parametrize(
    ("operator", "numbers"),
    [
        (Linear(inputs=8, outputs=3), 30),
        (Norm(kind="rms", width=8), 80),
        (Norm(kind="rms", width=8, heads=3), 240),
        (Scan(width=8, state=4, heads=3), 240),
        (Norm(kind="batch", width=8), 80),
        (Attention(heads=2, kv_heads=1, head_dim=4, value_dim=3), 60),
        (Dropout(width=2, probability=0.1, of="attention"), 100),
        (Loss(classes=9), 10),
    ],
    ids=lambda value: value.op if hasattr(value, "op") else "",
)
def test_elements_count_what_an_operator_puts_out(operator: Operator, numbers: int) -> None:
    assert elements(operator, Work(samples=2, length=5, context=5)) == numbers


@pytest.mark.parametrize(
    ("trainable", "learning", "fed"),
    [
        ({}, {"embed", "decoder.0", "decoder.3", "head"}, {"decoder.0", "decoder.3", "head"}),
        ({"frozen": ["embed", "decoder.0-2"]}, {"decoder.3", "head"}, {"head"}),
        ({"frozen": ["decoder.3"]}, {"embed", "decoder.0", "head"}, {"decoder.0", "decoder.3", "head"}),
        ({"lora": {"rank": 2}}, {"decoder.0", "decoder.3"}, {"decoder.3", "head"}),
    ],
    ids=["all", "the top", "but one", "adapters"],
)
def test_a_gradient_goes_down_to_the_lowest_layer_that_learns(
    trainable: dict[str, Any], learning: set[str], fed: set[str]
) -> None:
    placement = Placement(inputs(llama(), "cpu:1", {"all": 1}, {"all": "dp"}, recipe={"trainable": trainable}))
    asked = {"embed", "decoder.0", "decoder.3", "head"}
    assert {name for name in asked if placement.learns[name]} == learning
    assert {name for name in asked if placement.fed[name]} == fed
