"""Llama 1 to 3.x (transformers.models.llama), and the blocks that its many kin share with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, decoder_model, dropout, language_head
from meshwright.model.families.heads import Heads, core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

AT = "model.layers.{i}."


@dataclass(frozen=True)
class Style:
    """What a kin's blocks do; the defaults are Llama's."""

    norms: tuple[str | None, str | None, str | None, str | None] = (
        "input_layernorm",
        None,
        "post_attention_layernorm",
        None,
    )
    """Names of the norms before and after attention, before and after the MLP."""
    query_norm: Literal["head", "all"] | None = None
    """Queries and keys are normalised, head by head or all heads as one."""
    input_bias: bool = False
    """Of the matrices that make queries, keys and values."""
    output_bias: bool = False
    mlp_bias: bool = False
    fused: bool = False
    """Queries, keys and values come from one matrix, gate and up from one other."""
    rotary: float = 1.0
    """The share of a head that is rotated; 0: there is no rotary embedding."""
    norm: Literal["rms", "layer"] = "rms"
    """The kind of all norms but those of queries and keys."""
    clipped: bool = False
    """Queries, keys and values are clipped."""
    capped: bool = False
    sinks: bool = False
    scaled: bool = False
    """What attention and MLP add is multiplied by a number first."""
    residual_dropout: float = 0.0
    activation: str = "silu"
    mlp: str = "mlp"
    """The module of the MLP, or of the experts and their router."""


def llama(config: Config, name: str) -> ModelSpec:
    """Pre-norm blocks: grouped-query attention with rotary positions, a gated MLP."""
    bias = config.flag("attention_bias", False)
    style = Style(
        input_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        activation=config.word("hidden_act", "silu"),
    )
    return rotary_decoder(config, name, uniform_block(config, style), family="llama")


def uniform_block(config: Config, style: Style, window: int | None = None) -> Block:
    """The one block of a model whose layers are all equal."""
    return {"attention": attention(config, style, window), "mlp": gated_mlp(config, style)}


def windowed_blocks(config: Config, style: Style, windows: Sequence[int | None]) -> list[Block]:
    """A block for each layer, by the window of its attention."""
    kinds = {window: uniform_block(config, style, window) for window in windows}
    return [kinds[window] for window in windows]


def rotary_decoder(
    config: Config,
    name: str,
    blocks: Block | Sequence[Block],
    *,
    family: str,
    after_embedding: Sequence[Operator] = (),
    after_logits: Sequence[Operator] = (),
    norm: Literal["rms", "layer"] = "rms",
    head_bias: bool = False,
) -> ModelSpec:
    """A whole model of blocks at `model.layers`, as transformers names its parts. Reads the sizes around the blocks;
    `after_embedding` and `after_logits` are what a kin does besides.
    """
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", False)
    embed = Embedding(path="model.embed_tokens", rows=vocabulary, width=hidden, split="vocabulary")
    last = Norm(path="model.norm", kind=norm, width=hidden, bias=norm == "layer")
    *head, loss = language_head(last, hidden, vocabulary, tied=tied, bias=head_bias)
    return decoder_model(
        config,
        name,
        [embed, *after_embedding],
        blocks,
        [*head, *after_logits, loss],
        layers=config.layers(),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(("model.embed_tokens",), "model.layers.{i}", ("model.norm", "lm_head")),
        family=family,
        tied=tied,
        shared=("model.rotary_emb",),
    )


def attention(config: Config, style: Style, window: int | None = None) -> list[Operator]:
    """Attention with rotary positions and few or many KV heads, from the norm before it to the addition."""
    heads = read_heads(config, kv_heads="num_key_value_heads", head_dim="head_dim")
    at = AT + "self_attn"
    before, after = style.norms[:2]
    return [
        *block_norm(before, heads.hidden, style),
        *_projections(heads, style, at),
        *_query_norms(heads, style, at),
        *([Activation(function="clamp", width=heads.queries + 2 * heads.keys)] if style.clipped else ()),
        *([Rotary(width=(heads.count + heads.kv) * int(heads.dim * style.rotary))] if style.rotary else ()),
        *core(config, heads, at, window=window, capped=style.capped, sinks=style.sinks),
        Linear(path=f"{at}.o_proj", inputs=heads.queries, outputs=heads.hidden, bias=style.output_bias, split="row"),
        *block_norm(after, heads.hidden, style),
        *dropout(style.residual_dropout, heads.hidden, "hidden", AT + "resid_attn_dropout"),
        *added(heads.hidden, style),
    ]


def _projections(heads: Heads, style: Style, at: str) -> list[Linear]:
    if style.fused:
        return [heads.fused(f"{at}.qkv_proj", bias=style.input_bias)]
    widths = {"q_proj": heads.queries, "k_proj": heads.keys, "v_proj": heads.keys}
    return [
        Linear(path=f"{at}.{name}", inputs=heads.hidden, outputs=width, bias=style.input_bias, split="column")
        for name, width in widths.items()
    ]


def _query_norms(heads: Heads, style: Style, at: str) -> list[Norm]:
    counts = {"q_norm": heads.count, "k_norm": heads.kv}
    match style.query_norm:
        case "head":
            return [
                Norm(path=f"{at}.{name}", kind="rms", width=heads.dim, heads=count) for name, count in counts.items()
            ]
        case "all":
            return [Norm(path=f"{at}.{name}", kind="rms", width=count * heads.dim) for name, count in counts.items()]
    return []


def gated_mlp(config: Config, style: Style, ffn: int | None = None) -> list[Operator]:
    """down(act(gate(x)) · up(x)), from the norm before it to the addition."""
    hidden, ffn = config.size("hidden_size"), ffn or config.size("intermediate_size")
    before, after = style.norms[2:]
    return [
        *block_norm(before, hidden, style),
        *gated_matrices(hidden, ffn, style, AT + style.mlp),
        *block_norm(after, hidden, style),
        *dropout(style.residual_dropout, hidden, "hidden", AT + "resid_mlp_dropout"),
        *added(hidden, style),
    ]


def gated_matrices(hidden: int, ffn: int, style: Style, at: str) -> list[Operator]:
    """down(act(gate(x)) · up(x)) of the module at a path."""
    return [
        *_gates(hidden, ffn, style, at),
        Activation(function=style.activation, width=ffn, gated=True),
        Linear(path=f"{at}.down_proj", inputs=ffn, outputs=hidden, bias=style.mlp_bias, split="row"),
    ]


def _gates(hidden: int, ffn: int, style: Style, at: str) -> list[Linear]:
    if style.fused:
        both = (ffn, ffn)
        return [
            Linear(
                path=f"{at}.gate_up_proj",
                inputs=hidden,
                outputs=2 * ffn,
                bias=style.mlp_bias,
                split="column",
                segments=both,
            )
        ]
    return [
        Linear(path=f"{at}.{name}", inputs=hidden, outputs=ffn, bias=style.mlp_bias, split="column")
        for name in ("gate_proj", "up_proj")
    ]


def block_norm(name: str | None, hidden: int, style: Style) -> tuple[Norm, ...]:
    """A block's norm, where it has one of that name."""
    return (Norm(path=AT + name, kind=style.norm, width=hidden, bias=style.norm == "layer"),) if name else ()


def added(hidden: int, style: Style) -> list[Operator]:
    """The residual addition, and what a kin does before it."""
    return [*([Activation(function="scale", width=hidden)] if style.scaled else ()), Add(width=hidden)]
