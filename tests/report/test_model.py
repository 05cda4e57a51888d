"""A model's report: sums that add up, FLOPs that follow the formulas, hazards where there are some."""

import math

import pytest

from meshwright.cost.kernels import KERNEL_SETS
from meshwright.model.resolve import catalog_names, resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.report.blocks import Table
from meshwright.report.hazards import hazards
from meshwright.report.model import model_blocks, model_data
from meshwright.report.plain import plain_text
from tests.broken import MODEL


@pytest.mark.parametrize("name", catalog_names())
def test_the_parts_add_up_to_their_layers_and_the_layers_to_the_model(name: str) -> None:
    data = model_data(resolve_model(name), 4096)
    for key, total in (
        ("parameters", data["parameters"]),
        ("forward_flops_per_token", data["forward_flops_per_token"]),
    ):
        for layer in data["layers"]:
            assert math.isclose(sum(part[key] for part in layer["parts"]), layer[key])
        assert math.isclose(sum(layer[key] * layer["layers"] for layer in data["layers"]), total)


def test_llama_405b_has_the_parameters_that_its_authors_name() -> None:
    assert model_data(resolve_model("llama-3.1-405b"), 4096)["parameters"] == 405_853_388_800


def test_a_mixture_says_what_one_token_uses() -> None:
    assert "12.9 B per token" in plain_text(model_blocks(resolve_model("mixtral-8x7b"), 4096))
    assert "active" not in plain_text(model_blocks(resolve_model("llama-3-8b"), 4096))
    assert model_data(resolve_model("mixtral-8x7b"), 4096)["active_parameters"] == 12_879_925_248


def test_forward_flops_are_two_a_parameter_and_the_attention() -> None:
    """2 x the parameters of every matrix, and 4 x sequence x heads x head_dim a layer (Kaplan 2020, table 1)."""
    spec, sequence = resolve_model("llama-3-8b"), 8192
    matrices = spec.parameters - 128_256 * 4096 - (2 * 32 + 1) * 4096
    wanted = 2 * matrices + 32 * 4 * sequence * 32 * 128
    assert model_data(spec, sequence)["forward_flops_per_token"] == wanted


def test_a_stream_of_fixed_length_does_not_grow_with_the_sequence() -> None:
    spec = ModelSpec.parse(MODEL.replace(", cross: tokens", ""))
    short, long = (model_data(spec, sequence)["layers"][1]["forward_flops_per_token"] for sequence in (64, 4096))
    assert short == long > 0


def test_spans_that_save_the_same_share_a_column_and_each_kernel_set_has_a_row() -> None:
    """Gemma 2 alternates between two kinds of layers, which keep the same where the sequence fits in their window."""
    saved = next(
        block
        for block in model_blocks(resolve_model("gemma-2-2b"), 2048)
        if isinstance(block, Table) and block.title.startswith("saved")
    )
    assert saved.columns == ("kernels", "embed", "decoder.0, 25 more", "head")
    assert [row[0] for row in saved.rows] == list(KERNEL_SETS)


HAZARDS = [
    ("gpt2", "tied-parameters", "transformer.wte.weight, lm_head.weight are one parameter"),
    ("gpt2-xl", "heads", "25 attention heads divide over tp 1, 5, 25, not over 8"),
    ("tinyllama-1.1b", "few-kv-heads", "4 KV heads: tp above 4 holds copies of them"),
    ("gpt2", "vocabulary", "a vocabulary of 50,257 does not divide by 128 or 64: slow matrices; 50,304 would"),
    ("gpt2", "attention-dropout", "attention weights are dropped with probability 0.1"),
]


@pytest.mark.parametrize(("name", "hazard", "said"), HAZARDS)
def test_a_hazard_is_named_with_what_follows(name: str, hazard: str, said: str) -> None:
    found = {each.name: each.message for each in hazards(resolve_model(name))}
    assert said in found[hazard]


def test_batch_statistics_are_a_hazard() -> None:
    assert "batch-statistics" in {each.name for each in hazards(ModelSpec.parse(MODEL))}


def test_a_model_without_hazards_says_none() -> None:
    spec = resolve_model("llama-3.1-405b")
    assert hazards(spec) == []
    assert "to mind" not in plain_text(model_blocks(spec, 4096))


def test_the_report_names_every_layer_and_the_tie() -> None:
    text = plain_text(model_blocks(resolve_model("gpt2"), 1024))
    for word in (
        "decoder.0-11",
        "124,439,808",
        "transformer.wte.weight = lm_head.weight, counted once",
        "1,024 positions",
    ):
        assert word in text


def test_saved_bytes_are_those_of_the_kernel_sets() -> None:
    """GPT-2 small at 1,024: 34 s b h with 5 a s / h = 80 (Korthikanti 2022, equation 1), for each of 768 numbers."""
    layer = model_data(resolve_model("gpt2"), 1024)["layers"][1]
    assert layer["saved_bytes_per_token"]["megatron-fused"] == 768 * (34 + 80)
    assert "saved for backward by one layer" in plain_text(model_blocks(resolve_model("gpt2"), 1024))
