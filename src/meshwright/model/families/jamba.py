"""Jamba (transformers.models.jamba): layers with attention among layers with a Mamba mixer, experts in every second."""

from dataclasses import replace

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, decoder_model, language_head
from meshwright.model.families.llama import AT, Style, added, attention, block_norm, gated_mlp
from meshwright.model.families.mamba import mixer, read_mixer
from meshwright.model.families.moe import mixture_parts, read_mixture
from meshwright.model.operators import Embedding, Norm, Operator
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 65536,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 2,
    "num_experts": 16,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
"""Of transformers' JambaConfig."""


def jamba(config: Config, name: str) -> ModelSpec:
    """Attention without positions; every layer has a feed-forward part, some of them experts."""
    config = config.completed(DEFAULTS, {"num_local_experts": "num_experts"})
    hidden, vocabulary, layers = config.size("hidden_size"), config.size("vocab_size"), config.layers()
    tied = config.flag("tie_word_embeddings", False)
    return decoder_model(
        config,
        name,
        [Embedding(path="model.embed_tokens", rows=vocabulary, width=hidden, split="vocabulary")],
        _blocks(config, layers),
        language_head(Norm(path="model.final_layernorm", kind="rms", width=hidden), hidden, vocabulary, tied=tied),
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(("model.embed_tokens",), "model.layers.{i}", ("model.final_layernorm", "lm_head")),
        family="jamba",
        tied=tied,
    )


def _blocks(config: Config, layers: int) -> list[Block]:
    style = Style(
        norms=("input_layernorm", None, "pre_ff_layernorm", None),
        rotary=0,
        mlp="feed_forward",
        activation=config.word("hidden_act", "silu"),
    )
    mixture = replace(
        read_mixture(config, "num_experts", "intermediate_size"), router="router", activation=style.activation
    )
    mixers = {True: {"attention": attention(config, style)}, False: {"mixer": _mixer(config, style)}}
    experts = {True: mixture_parts(config, style, mixture), False: {"mlp": gated_mlp(config, style)}}
    if mixture.experts == 1:  # transformers then makes an MLP of every one
        experts[True] = experts[False]
    attends, mixes = (_turns(config, kind, layers) for kind in ("attn", "expert"))
    return [{**mixers[attend], **experts[mix]} for attend, mix in zip(attends, mixes, strict=True)]


def _turns(config: Config, kind: str, layers: int) -> list[bool]:
    """Whose turn it is: one layer in each period, `offset` from its start. Raises DocumentError."""
    period, offset = config.size(f"{kind}_layer_period"), config.count(f"{kind}_layer_offset")
    if offset >= period:
        raise config.error(f"{kind}_layer_offset", f"{offset} is not under {kind}_layer_period, which is {period}")
    return [layer % period == offset for layer in range(layers)]


def _mixer(config: Config, style: Style) -> list[Operator]:
    hidden = config.size("hidden_size")
    body = mixer(read_mixer(config, "mamba_", norms="weighted"), f"{AT}mamba")
    return [*block_norm(style.norms[0], hidden, style), *body, *added(hidden, style)]
