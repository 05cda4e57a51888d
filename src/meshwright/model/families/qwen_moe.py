"""Qwen 1.5, 2 and 3 with experts (transformers.models.qwen2_moe, qwen3_moe)."""

from dataclasses import replace

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block
from meshwright.model.families.llama import Style, rotary_decoder, uniform_block
from meshwright.model.families.moe import Mixture, mixture_block, read_mixture
from meshwright.model.families.windows import layer_windows
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts_per_tok": 4,
    "num_experts": 60,
}
"""Of transformers' Qwen2MoeConfig."""
DEFAULTS_3 = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
}
"""Of transformers' Qwen3MoeConfig."""


def qwen2_moe(config: Config, name: str) -> ModelSpec:
    """Qwen 2's attention; beside the routed experts one that all positions use, with a weight for each."""
    config = config.completed(DEFAULTS)
    style = Style(input_bias=config.flag("qkv_bias", True), activation=config.word("hidden_act", "silu"))
    mixture = replace(
        read_mixture(config, "num_experts", "moe_intermediate_size"),
        activation=style.activation,
        shared=config.size("shared_expert_intermediate_size"),
        shared_name="shared_expert",
        shared_gate="shared_expert_gate",
    )
    window = config.optional_size("sliding_window") if config.flag("use_sliding_window", False) else None
    highest = config.count("max_window_layers")
    usual = [window is not None and layer % 2 == 0 and layer < highest for layer in range(config.layers())]
    blocks = _blocks(config, style, mixture, layer_windows(config, usual, window))
    return rotary_decoder(config, name, blocks, family="qwen2_moe")


def qwen3_moe(config: Config, name: str) -> ModelSpec:
    """Qwen 3's attention, and routed experts alone; where windows are used, all layers have them."""
    config = config.completed(DEFAULTS_3, {"num_local_experts": "num_experts"})
    bias = config.flag("attention_bias", False)
    style = Style(query_norm="head", input_bias=bias, output_bias=bias, activation=config.word("hidden_act", "silu"))
    mixture = replace(read_mixture(config, "num_experts", "moe_intermediate_size"), activation=style.activation)
    window = config.optional_size("sliding_window") if config.flag("use_sliding_window", False) else None
    blocks = _blocks(config, style, mixture, [window] * config.layers())
    return rotary_decoder(config, name, blocks, family="qwen3_moe")


def _blocks(config: Config, style: Style, mixture: Mixture, windows: list[int | None]) -> list[Block]:
    """A block for each layer: every `decoder_sparse_step`-th has experts, but those of `mlp_only_layers`."""
    step, plain = config.size("decoder_sparse_step"), config.indices("mlp_only_layers")
    wanted = [((layer + 1) % step == 0 and layer not in plain, window) for layer, window in enumerate(windows)]
    kinds = {
        (sparse, window): mixture_block(config, style, mixture, window)
        if sparse
        else uniform_block(config, style, window)
        for sparse, window in set(wanted)
    }
    return [kinds[kind] for kind in wanted]
