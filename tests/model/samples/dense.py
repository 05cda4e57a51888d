"""Decoders without experts."""

from typing import Any

from tests.model.samples.build import NO_TOKENS, Sample

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
_GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 48,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 32,
}
_MISTRAL = LLAMA | {"model_type": "mistral", "num_key_value_heads": 2}
_QWEN2 = LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2}
_QWEN3 = _QWEN2 | {"model_type": "qwen3", "head_dim": 16}
_GEMMA = LLAMA | {"model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1}
_GEMMA2 = _GEMMA | {"model_type": "gemma2", "num_hidden_layers": 4, "num_key_value_heads": 2, "sliding_window": 8}
_GEMMA3 = _GEMMA2 | {"model_type": "gemma3_text", "num_hidden_layers": 8}
_OLMO2 = LLAMA | NO_TOKENS | {"model_type": "olmo2"}
_PHI = LLAMA | NO_TOKENS | {"model_type": "phi"}
_PHI3 = LLAMA | NO_TOKENS | {"model_type": "phi3", "num_key_value_heads": 2}
_NEOX = LLAMA | {"model_type": "gpt_neox"}
_GPTJ = _GPT2 | NO_TOKENS | {"model_type": "gptj", "rotary_dim": 4}
_OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": 48,
    "hidden_size": 32,
    "ffn_dim": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
_BLOOM: dict[str, Any] = {"model_type": "bloom", "vocab_size": 48, "hidden_size": 32, "n_head": 4, "n_layer": 3}
_FALCON = NO_TOKENS | {
    "model_type": "falcon",
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
_FALCON_NEW = _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
_FALCON_RW = _FALCON | {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}
_MPT: dict[str, Any] = {
    "model_type": "mpt",
    "vocab_size": 48,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 3,
    "max_seq_len": 32,
}

_VARIANTS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-few-kv-heads": LLAMA | {"num_key_value_heads": 2},
    "llama-wide-heads": LLAMA | {"head_dim": 16},
    "llama-tied": LLAMA | {"tie_word_embeddings": True},
    "llama-biases": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "gpt2": _GPT2,
    "gpt2-untied": _GPT2 | {"tie_word_embeddings": False},
    "gpt2-narrow-mlp": _GPT2 | {"n_inner": 24},
    "mistral": _MISTRAL,
    "mistral-window": _MISTRAL | {"sliding_window": 8},
    "mistral-wide-heads": _MISTRAL | {"sliding_window": None, "head_dim": 12},
    "qwen2": _QWEN2,
    "qwen2-tied": _QWEN2 | {"tie_word_embeddings": True},
    "qwen2-window-above": _QWEN2 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": _QWEN3,
    "qwen3-biases": _QWEN3 | {"attention_bias": True},
    "qwen3-own-layers": _QWEN3
    | {
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "gemma": _GEMMA,
    "gemma-untied": _GEMMA | {"tie_word_embeddings": False, "attention_bias": True},
    "gemma2": _GEMMA2,
    "gemma2-uncapped": _GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3": _GEMMA3,
    "gemma3-every-third": _GEMMA3 | {"sliding_window_pattern": 3, "num_key_value_heads": 1},
    "olmo2": _OLMO2,
    "olmo2-few-kv-heads": _OLMO2 | {"num_key_value_heads": 2, "attention_bias": True},
    "phi": _PHI,
    "phi-normed-queries": _PHI | {"qk_layernorm": True, "num_key_value_heads": 2, "partial_rotary_factor": 0.25},
    "phi-dropout": _PHI | {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "tie_word_embeddings": True},
    "phi3": _PHI3,
    "phi3-dropout": _PHI3 | {"resid_pdrop": 0.1, "attention_dropout": 0.1, "sliding_window": 8},
    "phi4-mini": _PHI3 | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    "gpt-neox": _NEOX,
    "gpt-neox-one-after-the-other": _NEOX | {"use_parallel_residual": False, "hidden_dropout": 0.1},
    "gpt-neox-tied": _NEOX | {"tie_word_embeddings": True, "attention_bias": False},
    "gptj": _GPTJ,
    "gptj-tied": _GPTJ | {"tie_word_embeddings": True, "n_inner": 24},
    "opt": _OPT,
    "opt-350m": _OPT | {"word_embed_proj_dim": 16, "do_layer_norm_before": False},
    "opt-bare": _OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False},
    "bloom": _BLOOM,
    "bloom-dropout": _BLOOM | {"hidden_dropout": 0.1, "attention_dropout": 0.1, "tie_word_embeddings": False},
    "falcon-7b": _FALCON,
    "falcon-40b": _FALCON_NEW,
    "falcon-11b": _FALCON_NEW | {"num_ln_in_parallel_attn": 1, "ffn_hidden_size": 40, "tie_word_embeddings": False},
    "falcon-rw": _FALCON_RW,
    "falcon-rw-dropout": _FALCON_RW | {"hidden_dropout": 0.1, "attention_dropout": 0.1, "alibi": False},
    "mpt": _MPT,
    "mpt-clipped": _MPT | {"attn_config": {"clip_qkv": 8.0}, "tie_word_embeddings": False},
}

DENSE: tuple[Sample, ...] = tuple(Sample(name, config) for name, config in _VARIANTS.items())
