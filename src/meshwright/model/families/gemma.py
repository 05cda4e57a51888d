"""Gemma 1 to 3, text alone (transformers.models.gemma, gemma2, gemma3)."""

from dataclasses import replace

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block
from meshwright.model.families.llama import Style, rotary_decoder, uniform_block, windowed_blocks
from meshwright.model.families.windows import layer_windows
from meshwright.model.operators import Activation
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
"""Of transformers' GemmaConfig."""
DEFAULTS_2 = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
"""Of transformers' Gemma2Config."""
DEFAULTS_3 = DEFAULTS_2 | {"vocab_size": 262208, "attn_logit_softcapping": None, "final_logit_softcapping": None}
"""Of transformers' Gemma3TextConfig."""
_SANDWICH = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def gemma(config: Config, name: str) -> ModelSpec:
    """Llama's blocks with wide heads, and scaled embeddings tied to the head."""
    config = config.completed(DEFAULTS)
    config.only("use_bidirectional_attention", None, False)
    style = _style(config, "hidden_act")
    if style.activation == "gelu":  # an old name; the tanh form is what transformers takes for it
        style = replace(style, activation="gelu_pytorch_tanh")
    return _decoder(config, name, "gemma", uniform_block(config, style))


def gemma2(config: Config, name: str) -> ModelSpec:
    """Norms before and after attention and MLP, every other layer with a window, capped scores and logits."""
    config = config.completed(DEFAULTS_2)
    config.only("use_bidirectional_attention", None, False)
    slides = [layer % 2 == 0 for layer in range(config.layers())]
    style = replace(
        _style(config, "hidden_activation"),
        norms=_SANDWICH,
        capped=config.fields["attn_logit_softcapping"] is not None,
    )
    return _decoder(config, name, "gemma2", _alternating(config, style, slides))


def gemma3_text(config: Config, name: str) -> ModelSpec:
    """Gemma 2's blocks without caps, queries and keys normalised head by head; one layer in six sees all positions."""
    config = config.completed(DEFAULTS_3)
    config.only("use_bidirectional_attention", None, False)
    pattern = config.size("sliding_window_pattern", 6)
    slides = [(layer + 1) % pattern != 0 for layer in range(config.layers())]
    style = replace(_style(config, "hidden_activation"), norms=_SANDWICH, query_norm="head")
    return _decoder(config, name, "gemma3_text", _alternating(config, style, slides))


def _style(config: Config, activation: str) -> Style:
    bias = config.flag("attention_bias", False)
    return Style(input_bias=bias, output_bias=bias, activation=config.word(activation, "gelu_pytorch_tanh"))


def _alternating(config: Config, style: Style, slides: list[bool]) -> list[Block]:
    windows = layer_windows(config, slides, config.optional_size("sliding_window"))
    return windowed_blocks(config, style, windows)


def _decoder(config: Config, name: str, family: str, blocks: Block | list[Block]) -> ModelSpec:
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    capped = config.fields.get("final_logit_softcapping") is not None
    return rotary_decoder(
        config,
        name,
        blocks,
        family=family,
        after_embedding=[Activation(function="scale", width=hidden)],
        after_logits=[Activation(function="softcap", width=vocabulary)] if capped else [],
    )
