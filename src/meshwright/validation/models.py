"""The model of a measured row, from the shape that the row gives; a mixture's attention from the catalogue.

A mixture that is no model of the catalogue is said as its nearest kin:
* Grok-1 as a Mixtral: grouped queries and gated experts, two of eight (grok1_314b.yaml of NVIDIA/dgxc-benchmarking has
  rotary embeddings, RMS norms, no biases; GeGLU for SwiGLU moves as many bytes).
* Llama 4 Maverick as a Qwen 2 with experts in every second layer, and beside them one of the same width that all
  positions use (transformers' Llama4TextConfig: interleave_moe_layer_step 2; Qwen weighs it by a product of one column
  more). Windows of 8,192 positions are no shorter than the rows' sequences.
"""

import json
import re
from typing import Any

from meshwright.model.hf_config import from_config
from meshwright.model.resolve import CATALOG
from meshwright.model.spec import ModelSpec
from meshwright.validation.frameworks import Framework
from meshwright.validation.rows import Measured
from meshwright.validation.unusable import Unusable

_PADDING = 128  # Megatron-LM's --make-vocab-size-divisible-by, times tp
_PIECES = 32000
"""Words of a SentencePiece model where a row names none: zero_bubble's script (examples/pretrain_zero_bubble.sh of
sail-sg/zero-bubble-pipeline-parallelism) has GPTSentencePieceTokenizer, and its paper takes one layer off the last
stage for the head; 32,000 words, as Llama's, cost a layer of 2,304."""
_MIXTURES: tuple[tuple[str, str], ...] = (
    (r"^Mixtral-8x22B", "mixtral-8x22b"),
    (r"^Qwen3.30B", "qwen3-30b-a3b"),
    (r"^Qwen3.235B", "qwen3-235b-a22b"),
    (r"^GPT.OSS.120B", "gpt-oss-120b"),
    (r"^DeepSeek-?V3", "deepseek-v3"),
    (r"^Kimi.K2", "kimi-k2"),
)
"""What a row's name begins with → the catalogue's model, which has the row's layers and words."""
_SHAPE = ("n_layers", "hidden", "n_heads", "vocab")


def model_of(row: Measured, framework: Framework) -> ModelSpec:
    """Raises Unusable where the shape is not given, DocumentError where it makes no model."""
    unknown = [name for name in _SHAPE if not row.text(name) and not (name == "vocab" and row.source == "zero_bubble")]
    if unknown:
        raise Unusable(f"the model's {', '.join(unknown)} is not said")
    return from_config(_config(row, framework), row.text("model_name"))


def _config(row: Measured, framework: Framework) -> dict[str, Any]:
    if row.text("n_experts"):
        return _mixture(row, framework)
    return _gated(row, framework) if row.text("mlp_gated") == "1" else _plain(row, framework)


def _words(row: Measured, framework: Framework) -> int:
    """Rows of the table of words."""
    multiple = _PADDING * row.count("tp") if framework.pads else 1
    return -(-row.count("vocab", _PIECES) // multiple) * multiple


def _gated(row: Measured, framework: Framework) -> dict[str, Any]:
    """Llama and what is shaped like it."""
    return {
        "model_type": "llama",
        "num_hidden_layers": row.count("n_layers"),
        "hidden_size": row.count("hidden"),
        "intermediate_size": row.count("ffn_hidden"),
        "num_attention_heads": row.count("n_heads"),
        "num_key_value_heads": row.count("n_kv_heads", row.count("n_heads")),
        "vocab_size": _words(row, framework),
        "max_position_embeddings": row.count("seq_len"),
        "tie_word_embeddings": row.text("tied_emb") == "1",
    }


def _plain(row: Measured, framework: Framework) -> dict[str, Any]:
    """GPT-3 and what is shaped like it, as Megatron-LM has it. BLOOM has no table of positions (ALiBi), nor has MPT,
    which has no biases (llm-foundry's own code, whose attention is flash attention, not transformers'); Nemotron turns
    half of a head (`rotary_percentage: 0.5`) and has no biases (nemotron4-340b-synth.yaml).
    """
    nemotron, mpt = "emotron" in row.text("model_name"), row.text("model_name").startswith("MPT")
    unplaced = mpt or row.source == "bigscience"
    positions = "rope" if nemotron else "none" if unplaced else "learned_absolute"
    return {
        "model_type": "megatron-gpt",
        "num_layers": row.count("n_layers"),
        "hidden_size": row.count("hidden"),
        "ffn_hidden_size": row.count("ffn_hidden", 4 * row.count("hidden")),
        "num_attention_heads": row.count("n_heads"),
        "num_query_groups": row.count("n_kv_heads", row.count("n_heads")),
        "kv_channels": -(-row.count("hidden") // row.count("n_heads")),
        "padded_vocab_size": _words(row, framework),
        "max_position_embeddings": row.count("seq_len"),
        "hidden_dropout": framework.dropout,
        "attention_dropout": framework.dropout,
        "untie_embeddings_and_output_weights": row.text("tied_emb") != "1",
        "position_embedding_type": positions,
        "add_bias_linear": not (nemotron or mpt),
        **({"rotary_percent": 0.5} if nemotron else {}),
    }


def _mixture(row: Measured, framework: Framework) -> dict[str, Any]:
    """Raises Unusable where the mixture is of no family that is known."""
    name, words = row.text("model_name"), _words(row, framework)
    if name.startswith("Grok"):
        return _gated(row, framework) | {
            "model_type": "mixtral",
            "intermediate_size": row.count("moe_ffn_hidden"),
            "num_local_experts": row.count("n_experts"),
            "num_experts_per_tok": row.count("top_k"),
        }
    if "Maverick" in name:
        return _gated(row, framework) | {
            "model_type": "qwen2_moe",
            "qkv_bias": False,
            "decoder_sparse_step": 2,
            "num_experts": row.count("n_experts"),
            "num_experts_per_tok": row.count("top_k"),
            "moe_intermediate_size": row.count("moe_ffn_hidden"),
            "shared_expert_intermediate_size": row.count("moe_ffn_hidden"),
        }
    known = next((known for pattern, known in _MIXTURES if re.search(pattern, name)), None)
    if known is None:
        raise Unusable(f"'{name}' is a mixture of experts of no family that is known")
    config: dict[str, Any] = json.loads((CATALOG / f"{known}.json").read_text(encoding="utf-8"))["config"]
    return config | {"num_hidden_layers": row.count("n_layers"), "vocab_size": words}
