"""Mistral (transformers.models.mistral)."""

from meshwright.model.families.config import Config
from meshwright.model.families.llama import Style, rotary_decoder, uniform_block
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "sliding_window": 4096,
}
"""Of transformers' MistralConfig."""


def mistral(config: Config, name: str) -> ModelSpec:
    """Llama's blocks without biases; where the configuration names a window, every layer's attention has it."""
    config = config.completed(DEFAULTS)
    style = Style(activation=config.word("hidden_act", "silu"))
    return rotary_decoder(
        config, name, uniform_block(config, style, config.optional_size("sliding_window")), family="mistral"
    )
