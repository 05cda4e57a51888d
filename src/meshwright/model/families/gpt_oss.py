"""gpt-oss (transformers.models.gpt_oss)."""

from dataclasses import replace

from meshwright.model.families.config import Config
from meshwright.model.families.llama import Style, rotary_decoder
from meshwright.model.families.moe import mixture_block, read_mixture
from meshwright.model.families.windows import layer_windows
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
}
"""Of transformers' GptOssConfig."""


def gpt_oss(config: Config, name: str) -> ModelSpec:
    """Attention with a learned sink a head, every other layer with a window; biases in attention, router and experts,
    whose gates are clamped.
    """
    config = config.completed(DEFAULTS, {"num_experts": "num_local_experts"})
    bias = config.flag("attention_bias", True)
    style = Style(input_bias=bias, output_bias=bias, sinks=True)
    mixture = replace(
        read_mixture(config, "num_local_experts", "intermediate_size"),
        router="router",
        bias=True,
        activation="clamped_swiglu",
    )
    slides = [layer % 2 == 0 for layer in range(config.layers())]
    windows = layer_windows(config, slides, config.optional_size("sliding_window"))
    kinds = {window: mixture_block(config, style, mixture, window) for window in windows}
    return rotary_decoder(config, name, [kinds[window] for window in windows], family="gpt_oss")
