"""OLMo 2 (transformers.models.olmo2)."""

from meshwright.model.families.config import Config
from meshwright.model.families.llama import Style, rotary_decoder, uniform_block
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
}
"""Of transformers' Olmo2Config."""


def olmo2(config: Config, name: str) -> ModelSpec:
    """Norms after attention and MLP instead of before; all queries are normalised as one, and all keys."""
    config = config.completed(DEFAULTS)
    bias = config.flag("attention_bias", False)
    style = Style(
        norms=(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
        query_norm="all",
        input_bias=bias,
        output_bias=bias,
        activation=config.word("hidden_act", "silu"),
    )
    return rotary_decoder(config, name, uniform_block(config, style), family="olmo2")
