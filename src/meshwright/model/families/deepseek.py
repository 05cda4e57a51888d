"""DeepSeek V2 and V3, and their kin (transformers.models.deepseek_v2, deepseek_v3): latent attention, many experts.

transformers builds no multi-token prediction modules for training, whatever `num_nextn_predict_layers` says, and skips
their weights in a checkpoint; they are left out here too.
"""

from dataclasses import replace

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import dropout
from meshwright.model.families.llama import AT, Style, added, block_norm, gated_mlp, rotary_decoder
from meshwright.model.families.moe import Mixture, mixture_parts, read_mixture
from meshwright.model.operators import Attention, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1407,
}
"""Of transformers' DeepseekV2Config."""
DEFAULTS_3 = DEFAULTS | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
}
"""Of transformers' DeepseekV3Config."""


def deepseek_v2(config: Config, name: str) -> ModelSpec:
    """Leading dense layers, then experts chosen by softmax, in some models of a few groups alone."""
    config = config.completed(DEFAULTS, {"num_experts": "n_routed_experts"})
    config.only("topk_method", "greedy", "group_limited_greedy", default="greedy")
    config.only("scoring_func", "softmax", default="softmax")
    style = Style(mlp_bias=config.flag("mlp_bias", False), activation=config.word("hidden_act", "silu"))
    mixture = _mixture(config, style)
    if config.word("topk_method", "greedy") != "greedy":
        mixture = _grouped(config, mixture)
    return _deepseek(config, name, "deepseek_v2", style, mixture)


def deepseek_v3(config: Config, name: str) -> ModelSpec:
    """Leading dense layers, then experts of a few groups alone, chosen by sigmoid and a correction that no gradient
    trains (a buffer).
    """
    config = config.completed(
        DEFAULTS_3, {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"}
    )
    config.only("topk_method", "noaux_tc", default="noaux_tc")
    config.only("scoring_func", "sigmoid", default="sigmoid")
    style = Style(activation=config.word("hidden_act", "silu"))
    mixture = replace(_grouped(config, _mixture(config, style)), scores="sigmoid")
    return _deepseek(config, name, "deepseek_v3", style, mixture)


def _deepseek(config: Config, name: str, family: str, style: Style, mixture: Mixture) -> ModelSpec:
    config.only("moe_layer_freq", 1, default=1)
    layers, dense = config.layers(), config.count("first_k_dense_replace")
    latent = _attention(config, style)
    first = {"attention": latent, "mlp": gated_mlp(config, style)}
    other = {"attention": latent, **mixture_parts(config, style, mixture)}
    blocks = [first if layer < dense else other for layer in range(layers)]
    return rotary_decoder(config, name, blocks, family=family)


def _mixture(config: Config, style: Style) -> Mixture:
    mixture = read_mixture(config, "n_routed_experts", "moe_intermediate_size")
    shared = config.size("n_shared_experts") * mixture.ffn
    return replace(mixture, activation=style.activation, wide=True, shared=shared)


def _grouped(config: Config, mixture: Mixture) -> Mixture:
    """Experts lie in `n_group` groups, of which `topk_group` may be used, so that a position goes to few nodes
    (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Raises DocumentError.
    """
    groups, used = config.size("n_group"), config.size("topk_group")
    if mixture.experts % groups:
        raise config.error("n_group", f"{groups} groups do not divide the {mixture.experts} experts")
    if used > groups:
        raise config.error("topk_group", f"{used} is more than the {groups} groups")
    return replace(mixture, groups=groups, used_groups=used) if used < groups else mixture


def _attention(config: Config, style: Style) -> list[Operator]:
    """Keys and values are made of a narrow latent for all heads, keys of a rotated piece besides that all heads share
    (DeepSeek-V2, arXiv 2405.04434, section 2.1); so are queries, where `q_lora_rank` says so.
    """
    hidden, heads, at = config.size("hidden_size"), config.size("num_attention_heads"), AT + "self_attn"
    config.only("num_key_value_heads", heads, None)
    plain, rotated, value = (config.size(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent, bias = config.size("kv_lora_rank"), config.flag("attention_bias", False)
    wide = heads * (plain + value)
    return [
        *block_norm(style.norms[0], hidden, style),
        *_queries(config, hidden, heads * (plain + rotated), bias=bias),
        Linear(
            path=f"{at}.kv_a_proj_with_mqa",
            inputs=hidden,
            outputs=latent + rotated,
            bias=bias,
            segments=(latent, rotated),
        ),
        Norm(path=f"{at}.kv_a_layernorm", kind="rms", width=latent),
        Linear(path=f"{at}.kv_b_proj", inputs=latent, outputs=wide, split="column"),
        Rotary(width=(heads + 1) * rotated),
        Attention(path=at, heads=heads, kv_heads=heads, head_dim=plain + rotated, value_dim=value),
        *dropout(config.chance("attention_dropout", 0.0), heads, "attention", at),
        Linear(path=f"{at}.o_proj", inputs=heads * value, outputs=hidden, bias=bias, split="row"),
        *added(hidden, style),
    ]


def _queries(config: Config, hidden: int, width: int, *, bias: bool) -> list[Operator]:
    rank, at = config.optional_size("q_lora_rank"), AT + "self_attn"
    if rank is None:
        return [Linear(path=f"{at}.q_proj", inputs=hidden, outputs=width, split="column")]
    return [
        Linear(path=f"{at}.q_a_proj", inputs=hidden, outputs=rank, bias=bias),
        Norm(path=f"{at}.q_a_layernorm", kind="rms", width=rank),
        Linear(path=f"{at}.q_b_proj", inputs=rank, outputs=width, split="column"),
    ]
