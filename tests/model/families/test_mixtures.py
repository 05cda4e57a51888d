"""Layers with experts and without, latent attention, mixers; and what their configurations must not say."""

from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from meshwright.errors import DocumentError
from meshwright.model.hf_config import from_config
from meshwright.model.operators import Activation, Attention, Experts, Linear, Router, Scan
from meshwright.model.resolve import from_catalog
from meshwright.model.spec import ModelSpec
from meshwright.model.work import Work
from tests.model.samples.build import Sample
from tests.model.samples.sparse import SPARSE


def _spans(model: ModelSpec) -> list[str]:
    return [stack.span for stack in model.stacks[1:-1]]


def _parts(model: ModelSpec) -> list[tuple[str, ...]]:
    return [tuple(part.name for part in stack.parts) for stack in model.stacks[1:-1]]


DENSE, MIXED = ("attention", "mlp"), ("attention", "mlp", "experts")


@pytest.mark.parametrize(
    ("name", "spans"),
    [
        ("deepseek-v3", {"decoder.0-2": DENSE, "decoder.3-60": MIXED}),
        ("deepseek-v2-lite", {"decoder.0": DENSE, "decoder.1-26": MIXED}),
        ("kimi-k2", {"decoder.0": DENSE, "decoder.1-60": MIXED}),
        ("mixtral-8x7b", {"decoder.0-31": MIXED}),
        ("qwen3-235b-a22b", {"decoder.0-93": MIXED}),
    ],
)
def test_leading_layers_are_dense(name: str, spans: dict[str, tuple[str, ...]]) -> None:
    model = from_catalog(name)
    assert dict(zip(_spans(model), _parts(model), strict=True)) == spans


def test_qwen_places_experts_by_step_and_by_list() -> None:
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 6}
    assert _parts(from_config(config | {"decoder_sparse_step": 2})) == [DENSE, MIXED] * 3
    assert _spans(from_config(config | {"mlp_only_layers": [0, 3]})) == [
        "decoder.0",
        "decoder.1-2",
        "decoder.3",
        "decoder.4-5",
    ]


def test_every_other_layer_of_gpt_oss_has_a_window_and_all_have_sinks() -> None:
    model = from_catalog("gpt-oss-20b")
    cores = [core for layer in model.layers for core in model.attentions(layer.name)]
    assert [core.window for core in cores] == [128, None] * 12
    assert all(core.sinks and core.parameters() == 64 for core in cores)
    experts = next(op for op in model.stacks[1].operators if isinstance(op, Experts))
    assert (experts.bias, experts.function) == (True, "clamped_swiglu")
    assert experts.parameters() == 32 * (3 * 2880 * 2880 + 3 * 2880)


def test_jamba_attends_in_one_layer_of_eight_and_mixes_in_every_second() -> None:
    names = [{part.name for part in layer.stack.parts} for layer in from_catalog("jamba-v0.1").layers[1:-1]]
    assert [at for at, parts in enumerate(names) if "attention" in parts] == [4, 12, 20, 28]
    assert [at for at, parts in enumerate(names) if "experts" in parts] == [*range(1, 32, 2)]


def test_latent_attention_has_wider_keys_than_values() -> None:
    """DeepSeek-V2, arXiv 2405.04434, section 3.1.2: keys of 128 and 64, values of 128, latents of 512 and 1536."""
    stack = from_catalog("deepseek-v2").stacks[1]
    [core] = [op for op in stack.operators if isinstance(op, Attention)]
    assert (core.heads, core.kv_heads, core.head_dim, core.value_dim) == (128, 128, 192, 128)
    matrices = {op.path.rpartition(".")[2]: (op.inputs, op.outputs) for op in stack.operators if isinstance(op, Linear)}
    assert matrices["q_b_proj"] == (1536, 128 * 192)
    assert matrices["kv_a_proj_with_mqa"] == (5120, 512 + 64)
    assert matrices["kv_b_proj"] == (512, 128 * 256)


def test_prediction_modules_are_left_out_as_transformers_leaves_them_out() -> None:
    config = {"model_type": "deepseek_v3"}
    assert from_config(config | {"num_nextn_predict_layers": 0}) == from_config(
        config | {"num_nextn_predict_layers": 1}
    )


def test_kimi_k2_by_its_own_name_is_deepseek_v3_with_other_sizes() -> None:
    config = {"model_type": "kimi_k2", "n_routed_experts": 384, "num_attention_heads": 64, "vocab_size": 163840}
    other = config | {"model_type": "deepseek_v3"}
    assert from_config(config).stacks == from_config(other).stacks


def test_qwens_shared_expert_has_a_weight_of_its_own() -> None:
    operators = from_catalog("qwen1.5-moe-a2.7b").stacks[1].operators
    [gate] = [op for op in operators if isinstance(op, Linear) and op.path.endswith("shared_expert_gate")]
    assert (gate.inputs, gate.outputs) == (2048, 1)
    assert [op.function for op in operators if isinstance(op, Activation)] == ["silu", "sigmoid", "weigh"]


@pytest.mark.parametrize(
    ("name", "scores", "wide"),
    [("mixtral-8x7b", "softmax", False), ("deepseek-v2", "softmax", True), ("deepseek-v3", "sigmoid", True)],
)
def test_routers_are_told_apart(name: str, scores: str, wide: bool) -> None:
    router = next(op for op in from_catalog(name).stacks[-2].operators if isinstance(op, Router))
    assert (router.function, router.wide) == (scores, wide)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("deepseek-v3", (8, 4)), ("deepseek-v2", (8, 3)), ("deepseek-v2-lite", (1, 1)), ("mixtral-8x7b", (1, 1))],
)
def test_experts_say_how_many_of_their_groups_a_position_uses(name: str, groups: tuple[int, int]) -> None:
    """`topk_group` of `n_group`; V2-Lite chooses among all (arXiv 2405.04434, section 2.2.2, appendix B)."""
    experts = next(op for op in from_catalog(name).stacks[-2].operators if isinstance(op, Experts))
    assert (experts.groups, experts.used_groups) == groups


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3", "gpt-oss"])
def test_numbers_route_as_many_positions_as_fake_tensors(name: str) -> None:
    """On real numbers each expert computes its own positions, however many; their sum is the same."""
    [sample] = [sample for sample in SPARSE if sample.name == name]
    counts = [_forward_flops(sample, experts) for experts in ("eager", "batched_mm")]
    assert counts[0] == counts[1]


def _forward_flops(sample: Sample, experts: str) -> int:
    model = sample.build("eager", experts=experts)
    with FlopCounterMode(display=False) as counter:
        model(**sample.batch(sample.config))
    return int(counter.get_total_flops())


def test_a_chunked_scan_by_hand() -> None:
    """Two chunks of four positions, the second filled up; three heads of two channels with five numbers each."""
    scan = Scan(width=2, heads=3, state=5, chunk=4)
    within = 2 * 4 * 4 * 5 + 2 * 4 * 4 * 2  # scores, and their weighted sum
    states = 2 * 2 * 4 * 2 * 5  # into a chunk's state, and out of one
    between = 3 * 3 * 2 * 5  # each state from those before it
    flops = scan.flops(Work(1, 7, 7))
    assert flops.forward == 2 * 3 * (within + states + between)
    assert flops.backward == 2 * flops.forward
    assert Scan(width=6, state=5).flops(Work(1, 7, 7)).forward == 2 * 7 * 6 * 5


SMALL = {sample.name: sample.config for sample in SPARSE}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok: 5 is more than the 4 experts that num_local_ex"),
        ("mixtral", {"num_experts": 3}, "num_experts: 3 contradicts num_local_experts, which is 4"),
        ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok: only 2 is known for this family"),
        ("phimoe", {"input_jitter_noise": 0.1}, "input_jitter_noise: only 0 is known for this family"),
        ("olmoe", {"head_dim": 16}, "head_dim: only nothing is known for this family"),
        ("qwen3-moe", {"mlp_only_layers": [-1]}, "mlp_only_layers: must be a list of whole numbers"),
        ("qwen3-moe", {"decoder_sparse_step": 0}, "decoder_sparse_step: must be a whole number from 1"),
        ("gpt-oss", {"sliding_window": None}, "layer_types: names layers with sliding windows, but"),
        ("deepseek-v2", {"num_key_value_heads": 2}, "num_key_value_heads: only 4 or nothing is known"),
        ("deepseek-v2", {"topk_method": "noaux_tc"}, "topk_method: only 'greedy' or 'group_limited_greedy' is known"),
        ("deepseek-v2-groups", {"n_group": 3}, "n_group: 3 groups do not divide the 8 experts"),
        ("deepseek-v3", {"topk_group": 5}, "topk_group: 5 is more than the 4 groups"),
        ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func: only 'sigmoid' is known for this family"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq: only 1 is known for this family"),
        ("mamba", {"time_step_rank": "all"}, "time_step_rank: must be a whole number from 1"),
        ("mamba2", {"num_heads": 4}, "num_heads: 4 heads of 8 are not the 64 channels of expand"),
        ("mamba2", {"n_groups": 3}, "n_groups: 3 groups do not divide the 8 heads"),
        ("jamba", {"attn_layer_offset": 3}, "attn_layer_offset: 3 is not under attn_layer_period, which is 3"),
    ],
)
def test_what_does_not_go_together_is_named(name: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_config(SMALL[name] | change)
    assert said in str(caught.value)
