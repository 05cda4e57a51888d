"""Models read from configurations equal transformers' own, parameter for parameter."""

import json
import re
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from meshwright.errors import DocumentError, UnknownNameError
from meshwright.model.hf_config import from_config
from meshwright.model.operators import Attention
from meshwright.model.resolve import CATALOG, catalog_names, from_catalog, resolve_model
from tests.model.samples.build import as_published
from tests.model.samples.dense import LLAMA

_QWEN2 = LLAMA | {"model_type": "qwen2", "num_hidden_layers": 2, "num_key_value_heads": 2}
_MEGATRON = {
    "model_type": "megatron-gpt",
    "hidden_size": 32,
    "num_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 48,
}

_AUTO = (
    transformers.AutoModelForImageTextToText,
    transformers.AutoModelForZeroShotImageClassification,
    transformers.AutoModelForSpeechSeq2Seq,
    transformers.AutoModelForSeq2SeqLM,
    transformers.AutoModelForMaskedLM,
    transformers.AutoModelForImageClassification,
    transformers.AutoModelForCausalLM,
)
"""The first that knows a configuration builds the whole model that it belongs to."""


def _on_meta(config: dict[str, Any]) -> torch.nn.Module:
    fields = {name: value for name, value in config.items() if name != "model_type"}
    settings = AutoConfig.for_model(config["model_type"], **fields)
    auto = next(auto for auto in _AUTO if type(settings) in auto._model_mapping)
    with torch.device("meta"), no_init_weights():
        module = auto.from_config(settings)
    module.tie_weights()  # which goes with the first values
    return as_published(module, config)


def _entry(name: str) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((CATALOG / f"{name}.json").read_text(encoding="utf-8"))
    return entry


UNKNOWN_TO_TRANSFORMERS = {"megatron-gpt"}
"""Their own tests hold these to the papers that they come from."""


@pytest.mark.parametrize(
    "name", [name for name in catalog_names() if _entry(name)["config"]["model_type"] not in UNKNOWN_TO_TRANSFORMERS]
)
def test_the_catalogue_counts_what_transformers_counts(name: str) -> None:
    module = _on_meta(_entry(name)["config"])
    assert from_catalog(name).parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", catalog_names())
def test_the_catalogue_says_where_its_facts_are_from(name: str) -> None:
    entry = _entry(name)
    assert set(entry) == {"source", "date", "config"}
    assert len(entry["source"]) > 10
    assert re.fullmatch(r"20[12]\d-(0[1-9]|1[0-2])", entry["date"])


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
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size: required key is missing"),
        (LLAMA | {"vocab_size": -1}, "vocab_size: must be a whole number from 1"),
        (LLAMA | {"num_hidden_layers": "3"}, "num_hidden_layers: must be a whole number from 1"),
        (LLAMA | {"num_attention_heads": 5}, "num_attention_heads: 5 heads do not divide hidden_size"),
        (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads: 3 KV heads do not divide"),
        (LLAMA | {"attention_dropout": 1.5}, "attention_dropout: must be a probability"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers: must be a whole number from 1 to 10,000"),
        ({"model_type": "gpt2", "n_embd": 8, "hidden_size": 9}, "hidden_size: 9 contradicts n_embd, which is 8"),
        ({"model_type": "bloom", "n_head": 4, "num_attention_heads": 8}, "8 contradicts n_head, which is 4"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention: only false is known"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types: must be a list of 32 words"),
        (_QWEN2 | {"layer_types": ["full_attention", "full"]}, "'full' is not known; known: full_attention, sl"),
        (_QWEN2 | {"layer_types": ["sliding_attention"] * 2}, "layer_types: names layers with sliding windows, but"),
        (_QWEN2 | {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers: must be a whole number"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention: only nothing or"),
        ({"model_type": "phi", "partial_rotary_factor": 0}, "partial_rotary_factor: must be a share from 0 to 1"),
        ({"model_type": "phi3", "rope_parameters": 1}, "rope_parameters: must be a mapping"),
        ({"model_type": "gptj", "n_embd": 64, "n_head": 4}, "rotary_dim: 64 is more than a head has, which is 16"),
        ({"model_type": "opt", "layerdrop": 0.1}, "layerdrop: only 0 is known for this family (got 0.1)"),
        ({"model_type": "mpt", "expansion_ratio": 2}, "expansion_ratio: only 4 is known for this family (got 2)"),
        ({"model_type": "mpt", "attn_config": {"qk_ln": True}}, "attn_config: qk_ln: only false is known"),
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "parallel_attn": False},
            "parallel_attn: is always",
        ),
        ({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn: 2 norms are known with"),
        ({"model_type": "falcon", "multi_query": False, "num_kv_heads": 1}, "num_kv_heads: 1 KV heads are known with"),
        ({"model_type": "megatron-gpt", "normalization": "RMS"}, "normalization: only 'LayerNorm' or 'RMSNorm' is"),
        (_MEGATRON, "max_position_embeddings: required key is missing"),
        (_MEGATRON | {"position_embedding_type": "rope", "num_query_groups": 3}, "num_query_groups: 3 KV heads do not"),
    ],
)
def test_a_broken_configuration_is_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_config(config)
    assert said in str(caught.value)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'llama-3.1-70b'"):
        resolve_model("llama-3.1-70")
