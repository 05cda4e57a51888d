"""Mixtral, and close kin whose every layer is a mixture: Phi-3.5-MoE, OLMoE, Granite MoE (transformers.models.mixtral,
phimoe, olmoe, granitemoe).
"""

from dataclasses import replace

from meshwright.model.families.config import Config
from meshwright.model.families.llama import Style, rotary_decoder
from meshwright.model.families.moe import mixture_block, read_mixture
from meshwright.model.operators import Activation
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
"""Of transformers' MixtralConfig."""
PHIMOE = DEFAULTS | {"vocab_size": 32064, "intermediate_size": 6400, "num_local_experts": 16}
"""Of transformers' PhimoeConfig."""
OLMOE = {
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_experts_per_tok": 8,
    "num_experts": 64,
}
"""Of transformers' OlmoeConfig."""
GRANITE = DEFAULTS | {"intermediate_size": 11008, "num_key_value_heads": None}
"""Of transformers' GraniteMoeConfig."""


def mixtral(config: Config, name: str) -> ModelSpec:
    """Mistral's attention; in every layer several experts instead of an MLP."""
    config = config.completed(DEFAULTS, {"num_experts": "num_local_experts"})
    style = Style(activation=config.word("hidden_act", "silu"))
    mixture = replace(
        read_mixture(config, "num_local_experts", "intermediate_size"),
        activation=style.activation,
        jitter=config.chance("router_jitter_noise", 0.0) > 0,
    )
    block = mixture_block(config, style, mixture, config.optional_size("sliding_window"))
    return rotary_decoder(config, name, block, family="mixtral")


def phimoe(config: Config, name: str) -> ModelSpec:
    """Mixtral with layer norms, biases and a router that draws the experts in training."""
    config = config.completed(PHIMOE)
    config.only("num_experts_per_tok", 2)  # SparseMixer draws a first and a second
    config.only("input_jitter_noise", 0, default=0)
    bias = config.flag("attention_bias", False)
    style = Style(norm="layer", input_bias=bias, output_bias=bias, activation=config.word("hidden_act", "silu"))
    mixture = replace(
        read_mixture(config, "num_local_experts", "intermediate_size"), router="router", activation=style.activation
    )
    block = mixture_block(config, style, mixture, config.optional_size("sliding_window"))
    head_bias = config.flag("lm_head_bias", False)
    return rotary_decoder(config, name, block, family="phimoe", norm="layer", head_bias=head_bias)


def olmoe(config: Config, name: str) -> ModelSpec:
    """Many small experts; all queries are normalised as one, and all keys."""
    config = config.completed(OLMOE, {"num_local_experts": "num_experts"})
    config.only("head_dim", None)
    bias = config.flag("attention_bias", False)
    style = Style(
        query_norm="all",
        input_bias=bias,
        output_bias=bias,
        clipped=config.fields.get("clip_qkv") is not None,
        activation=config.word("hidden_act", "silu"),
    )
    mixture = replace(read_mixture(config, "num_experts", "intermediate_size"), activation=style.activation)
    return rotary_decoder(config, name, mixture_block(config, style, mixture), family="olmoe")


def granitemoe(config: Config, name: str) -> ModelSpec:
    """Many small experts; embeddings, what layers add, and logits are multiplied by numbers."""
    config = config.completed(GRANITE)
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    bias = config.flag("attention_bias", False)
    style = Style(
        input_bias=bias,
        output_bias=bias,
        scaled=True,
        mlp="block_sparse_moe",
        activation=config.word("hidden_act", "silu"),
    )
    mixture = replace(
        read_mixture(config, "num_local_experts", "intermediate_size"), router="router", activation=style.activation
    )
    return rotary_decoder(
        config,
        name,
        mixture_block(config, style, mixture),
        family="granitemoe",
        after_embedding=[Activation(function="scale", width=hidden)],
        after_logits=[Activation(function="scale", width=vocabulary)],
    )
