"""Qwen 2, 2.5 and 3 without experts (transformers.models.qwen2, qwen3)."""

from meshwright.model.families.config import Config
from meshwright.model.families.llama import Style, rotary_decoder, windowed_blocks
from meshwright.model.families.windows import layer_windows
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "sliding_window": 4096,
    "max_window_layers": 28,
}
"""Of transformers' Qwen2Config."""
DEFAULTS_3 = DEFAULTS | {"head_dim": 128}
"""Of transformers' Qwen3Config."""


def qwen2(config: Config, name: str) -> ModelSpec:
    """Llama's blocks with biases on queries, keys and values alone."""
    config = config.completed(DEFAULTS)
    return _qwen(config, name, "qwen2", Style(input_bias=True, activation=config.word("hidden_act", "silu")))


def qwen3(config: Config, name: str) -> ModelSpec:
    """Llama's blocks, with queries and keys normalised head by head."""
    config = config.completed(DEFAULTS_3)
    bias = config.flag("attention_bias", False)
    style = Style(query_norm="head", input_bias=bias, output_bias=bias, activation=config.word("hidden_act", "silu"))
    return _qwen(config, name, "qwen3", style)


def _qwen(config: Config, name: str, family: str, style: Style) -> ModelSpec:
    blocks = windowed_blocks(config, style, qwen_windows(config))
    return rotary_decoder(config, name, blocks, family=family)


def qwen_windows(config: Config) -> list[int | None]:
    """The window of each layer: where windows are used at all, those above `max_window_layers` have one."""
    window = config.optional_size("sliding_window") if config.flag("use_sliding_window", False) else None
    first = config.fields.get("max_window_layers")
    if window is not None and (isinstance(first, bool) or not isinstance(first, int) or first < 0):
        raise config.error("max_window_layers", "must be a whole number, 0 or more")
    slides = [window is not None and layer >= (first or 0) for layer in range(config.layers())]
    return layer_windows(config, slides, window)
