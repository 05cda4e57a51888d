"""Mixtures of experts, latent attention, state-space models."""

from typing import Any

from tests.model.samples.build import NO_TOKENS, Sample

_SMALL: dict[str, Any] = NO_TOKENS | {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}
_MIXTRAL = _SMALL | {"model_type": "mixtral", "num_local_experts": 4}
_PHIMOE = _MIXTRAL | {"model_type": "phimoe"}
_OLMOE = _SMALL | {"model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 3}
_GRANITE = _MIXTRAL | {"model_type": "granitemoe", "tie_word_embeddings": True, "residual_multiplier": 0.22}
_QWEN2 = _SMALL | {
    "model_type": "qwen2_moe",
    "num_experts": 6,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 24,
}
_QWEN3 = _SMALL | {"model_type": "qwen3_moe", "num_experts": 6, "moe_intermediate_size": 12, "head_dim": 16}
_GPT_OSS = _SMALL | {"model_type": "gpt_oss", "num_local_experts": 4, "head_dim": 16, "sliding_window": 8}
_DEEPSEEK2 = _SMALL | {
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}
_DEEPSEEK3 = _DEEPSEEK2 | {
    "model_type": "deepseek_v3",
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
    "num_hidden_layers": 4,
    "n_group": 4,
    "topk_group": 2,
    "num_nextn_predict_layers": 1,
}
_MAMBA = NO_TOKENS | {
    "model_type": "mamba",
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 4,
}
_MAMBA2 = _MAMBA | {"model_type": "mamba2", "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}
_JAMBA = _SMALL | {
    "model_type": "jamba",
    "num_hidden_layers": 4,
    "num_experts": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 4,
}

_VARIANTS: dict[str, dict[str, Any]] = {
    "mixtral": _MIXTRAL,
    "mixtral-window": _MIXTRAL | {"sliding_window": 8, "head_dim": 12, "num_experts_per_tok": 1},
    "mixtral-jitter": _MIXTRAL | {"router_jitter_noise": 0.1, "attention_dropout": 0.1, "tie_word_embeddings": True},
    "phimoe": _PHIMOE,
    "phimoe-biases": _PHIMOE | {"attention_bias": True, "lm_head_bias": True, "num_local_experts": 3},
    "olmoe": _OLMOE,
    "olmoe-clipped": _OLMOE | {"clip_qkv": 8.0, "attention_bias": True, "num_key_value_heads": 4},
    "granitemoe": _GRANITE,
    "granitemoe-biases": _GRANITE | {"attention_bias": True, "tie_word_embeddings": False, "num_local_experts": 5},
    "qwen2-moe": _QWEN2,
    "qwen2-moe-every-second": _QWEN2 | {"decoder_sparse_step": 2, "num_hidden_layers": 5, "qkv_bias": False},
    "qwen2-moe-windows": _QWEN2
    | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "mlp_only_layers": [1]},
    "qwen3-moe": _QWEN3,
    "qwen3-moe-first-dense": _QWEN3 | {"mlp_only_layers": [0], "attention_bias": True},
    "qwen3-moe-window": _QWEN3 | {"use_sliding_window": True, "sliding_window": 8, "decoder_sparse_step": 2},
    "gpt-oss": _GPT_OSS,
    "gpt-oss-own-layers": _GPT_OSS
    | {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "num_local_experts": 6,
        "attention_bias": False,
    },
    "deepseek-v2": _DEEPSEEK2,
    "deepseek-v2-lite": _DEEPSEEK2 | {"q_lora_rank": None, "n_shared_experts": 1},
    "deepseek-v2-groups": _DEEPSEEK2
    | {
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "deepseek-v3": _DEEPSEEK3,
    "deepseek-v3-no-groups": _DEEPSEEK3
    | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "attention_bias": True, "attention_dropout": 0.1},
    "deepseek-v3-plain-queries": _DEEPSEEK3 | {"q_lora_rank": None, "tie_word_embeddings": True},
    "mamba": _MAMBA,
    "mamba-biases": _MAMBA | {"use_bias": True, "use_conv_bias": False, "expand": 3, "conv_kernel": 3},
    "mamba-untied": _MAMBA | {"time_step_rank": 5, "tie_word_embeddings": False},
    "falcon-mamba": _MAMBA | {"model_type": "falcon_mamba"},
    "mamba2": _MAMBA2,
    "mamba2-uneven-chunks": _MAMBA2 | {"chunk_size": 10, "n_groups": 1, "use_bias": True, "use_conv_bias": False},
    "mamba2-one-chunk": _MAMBA2 | {"chunk_size": 256, "tie_word_embeddings": True, "state_size": 6},
    "jamba": _JAMBA,
    "jamba-dense": _JAMBA | {"num_experts": 1, "num_experts_per_tok": 1, "mamba_proj_bias": True},
}

SPARSE: tuple[Sample, ...] = tuple(Sample(name, config) for name, config in _VARIANTS.items())
