"""Models read from configurations equal transformers' own, parameter for parameter."""

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from meshwright.errors import DocumentError, UnknownNameError
from meshwright.model.hf_config import from_config
from meshwright.model.operators import Attention, Linear
from meshwright.model.resolve import CATALOG, catalog_names, from_catalog, resolve_model
from meshwright.runtime.owners import parameter_owners

_SMALL_LLAMA = {
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
_SMALL_GPT2 = {"model_type": "gpt2", "vocab_size": 48, "n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 16}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": _SMALL_LLAMA,
    "few kv heads": _SMALL_LLAMA | {"num_key_value_heads": 2},
    "wide heads": _SMALL_LLAMA | {"head_dim": 16},
    "tied": _SMALL_LLAMA | {"tie_word_embeddings": True},
    "biases": _SMALL_LLAMA | {"attention_bias": True, "mlp_bias": True},
    "gpt2": _SMALL_GPT2,
    "gpt2 untied": _SMALL_GPT2 | {"tie_word_embeddings": False},
    "gpt2 narrow mlp": _SMALL_GPT2 | {"n_inner": 24},
}


def _on_meta(config: dict[str, Any]) -> torch.nn.Module:
    fields = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **fields))
    return model


@pytest.mark.parametrize("name", catalog_names())
def test_the_catalogue_counts_what_transformers_counts(name: str) -> None:
    entry = json.loads((CATALOG / f"{name}.json").read_text(encoding="utf-8"))
    module = _on_meta(entry["config"])
    assert from_catalog(name).parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_operator_is_where_transformers_has_it(config: dict[str, Any]) -> None:
    module, spec = _on_meta(config), from_config(config)
    owners = parameter_owners(module, spec)
    counted: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        counted[owners[name]] = counted.get(owners[name], 0) + parameter.numel()
    assert counted == {layer.name: layer.parameters for layer in spec.layers if layer.parameters}
    for layer in spec.layers:
        for operator in layer.stack.operators:
            if isinstance(operator, Linear):
                weight = module.get_submodule(layer.module_path(operator.path)).weight
                assert {*weight.shape} == {operator.inputs, operator.outputs}
    for path in spec.shared:
        assert not list(module.get_submodule(path).parameters())


def test_a_configuration_object_is_read_too() -> None:
    config = AutoConfig.for_model("llama", num_hidden_layers=2, hidden_size=64, num_attention_heads=4)
    assert resolve_model(config) == resolve_model(config.to_dict()).model_copy(update={"source": "LlamaConfig"})


def test_grouped_heads_are_told_apart() -> None:
    attention = next(op for op in from_catalog("llama-3.1-70b").stacks[1].operators if isinstance(op, Attention))
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (64, 8, 128)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llamas"}, "model_type: 'llamas' is no family that is known; did you mean 'llama'?"),
        ({}, "model_type: required key is missing"),
        ({k: v for k, v in _SMALL_LLAMA.items() if k != "hidden_size"}, "hidden_size: required key is missing"),
        (_SMALL_LLAMA | {"vocab_size": -1}, "vocab_size: must be a whole number from 1"),
        (_SMALL_LLAMA | {"num_hidden_layers": "3"}, "num_hidden_layers: must be a whole number from 1"),
        (_SMALL_LLAMA | {"num_attention_heads": 5}, "num_attention_heads: 5 heads do not divide hidden_size"),
        (_SMALL_LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads: 3 KV heads do not divide"),
        (_SMALL_LLAMA | {"attention_dropout": 1.5}, "attention_dropout: must be a probability"),
        (_SMALL_LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false"),
    ],
)
def test_a_broken_configuration_is_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_config(config)
    assert said in str(caught.value)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'llama-3.1-70b'"):
        resolve_model("llama-3.1-70")
