"""A Megatron GPT by its shape: against the papers' tables and formulas, and the families that it can look like."""

from typing import Any

import pytest

from meshwright.model.hf_config import from_config
from meshwright.model.operators import Norm, Rotary, work_of
from meshwright.model.resolve import from_catalog, resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.model.work import Flops

_SHAPE: dict[str, Any] = {
    "model_type": "megatron-gpt",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_layers": 3,
    "vocab_size": 96,
    "max_position_embeddings": 32,
}
_AS_LLAMA = _SHAPE | {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "num_query_groups": 2,
    "attention_dropout": 0,
    "hidden_dropout": 0,
}

# Name → billions of parameters as Narayanan 2021 (arXiv:2104.04473), table 1, prints them.
PRINTED = {
    "gpt-1.7b": 1.7,
    "gpt-3.6b": 3.6,
    "gpt-7.5b": 7.5,
    "gpt-18.4b": 18.4,
    "gpt-39.1b": 39.1,
    "gpt-76.1b": 76.1,
    "gpt-145.6b": 145.6,
    "gpt-310.1b": 310.1,
    "gpt-530b": 529.6,
    "gpt-1t": 1008.0,
}
SHAPES = {  # layers, width: Korthikanti 2022 (arXiv:2205.05198), table 3
    "gpt-22b": (48, 6144),
    "gpt-175b": (96, 12288),
    "gpt-530b": (105, 20480),
    "gpt-1t": (128, 25600),
}
_LENGTH, _VOCABULARY = 2048, 51200


def _flops(spec: ModelSpec, samples: int, length: int) -> Flops:
    found = [
        operator.flops(work_of(operator, samples, {"tokens": length}, "tokens"))
        for layer in spec.layers
        for operator in layer.stack.operators
    ]
    return Flops(*(sum(column) for column in zip(*found, strict=True)))


@pytest.mark.parametrize(("name", "billions"), PRINTED.items())
def test_the_catalogue_has_the_sizes_that_the_paper_prints(name: str, billions: float) -> None:
    assert round(from_catalog(name).parameters / 1e9, 1) == billions


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_parameters_are_those_of_the_formula_and_the_last_norm(name: str, shape: tuple[int, int]) -> None:
    """Narayanan 2021, equation 2: 12 l h² (1 + 13 / 12h + (V + s) / 12lh), which leaves out the last norm's 2h."""
    layers, h = shape
    formula = 12 * layers * h**2 + 13 * layers * h + (_VOCABULARY + _LENGTH) * h
    assert from_catalog(name).parameters == formula + 2 * h


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_matrix_flops_are_those_of_the_papers_formula(name: str, shape: tuple[int, int]) -> None:
    """Korthikanti 2022, appendix A: 72 B L s h² (1 + s / 6h + v / 12hL), forward and backward."""
    (layers, h), samples, s = shape, 4, _LENGTH
    formula = 72 * samples * layers * s * h**2 + 12 * samples * layers * s**2 * h + 6 * samples * s * h * _VOCABULARY
    flops = _flops(from_catalog(name), samples, s)
    assert flops.forward + flops.backward == formula


def test_the_defaults_are_gpt2_under_other_names() -> None:
    gpt2 = from_config(
        {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 96, "n_positions": 32}
    )
    ours = from_config(_SHAPE)
    assert [layer.parameters for layer in ours.layers] == [layer.parameters for layer in gpt2.layers]
    assert _flops(ours, 2, 16) == _flops(gpt2, 2, 16)
    assert ours.streams == gpt2.streams


def test_with_llamas_flags_it_is_a_llama_under_other_names() -> None:
    llama = from_config(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 3,
            "vocab_size": 96,
            "intermediate_size": 128,
        }
    )
    ours = from_config(_AS_LLAMA)
    assert [layer.parameters for layer in ours.layers] == [layer.parameters for layer in llama.layers]
    assert _flops(ours, 2, 16) == _flops(llama, 2, 16)
    assert (ours.ties, ours.streams["tokens"].limit, ours.shared) == ((), None, ("rotary_pos_emb",))


def test_a_gated_mlp_is_two_thirds_as_wide_down_to_a_multiple_of_64() -> None:
    """Megatron-LM's megatron/training/arguments.py (2024): int((4 h · 2 / 3) / 64) · 64."""
    model = from_config(_AS_LLAMA | {"hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 32})
    widths = {op.width for op in model.stacks[1].operators if op.op == "activation"}
    assert widths == {10880}


def test_queries_are_normalised_and_partly_rotated_where_flags_say_so() -> None:
    model = from_config(_AS_LLAMA | {"qk_layernorm": True, "rotary_percent": 0.5})
    operators = model.stacks[1].parts[0].operators
    norms = [(op.width, op.heads) for op in operators if isinstance(op, Norm) and op.heads]
    assert norms == [(16, 4), (16, 2)]
    assert [op.width for op in operators if isinstance(op, Rotary)] == [(4 + 2) * 8]


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("embedding.word_embeddings.weight", "embed"),
        ("embedding.position_embeddings.weight", "embed"),
        ("decoder.layers.2.input_layernorm.bias", "decoder.2"),
        ("decoder.layers.2.self_attention.linear_qkv.weight", "decoder.2"),
        ("decoder.layers.2.self_attention.linear_proj.bias", "decoder.2"),
        ("decoder.layers.2.pre_mlp_layernorm.weight", "decoder.2"),
        ("decoder.layers.2.mlp.linear_fc1.weight", "decoder.2"),
        ("decoder.layers.2.mlp.linear_fc2.bias", "decoder.2"),
        ("decoder.final_layernorm.weight", "head"),
        ("output_layer.weight", "head"),
    ],
)
def test_paths_are_those_of_megatron_core(parameter: str, layer: str) -> None:
    model = resolve_model(_SHAPE)
    assert model.layer_of(parameter) == layer
    named = {entry.module_path(op.path) for entry in model.layers for op in entry.stack.operators}
    assert parameter.rpartition(".")[0] in named


def test_a_padded_vocabulary_is_what_the_table_has() -> None:
    assert from_config(_SHAPE | {"padded_vocab_size": 128}).vocabulary == 128


def test_the_sequence_stands_for_positions_that_are_not_given() -> None:
    shape = {name: value for name, value in _SHAPE.items() if name != "max_position_embeddings"}
    assert from_config(shape | {"seq_length": 48}).streams["tokens"].limit == 48
