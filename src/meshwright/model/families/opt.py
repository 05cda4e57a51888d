"""OPT (transformers.models.opt)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, dropout, paths
from meshwright.model.families.heads import core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Loss, Norm, Operator
from meshwright.model.spec import ModelSpec

_AT = "model.decoder.layers.{i}."
_OFFSET = 2
"""Rows of the position table before the first position's."""
DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
    "activation_function": "relu",
}
"""Of transformers' OPTConfig."""


def opt(config: Config, name: str) -> ModelSpec:
    """Learned positions, a plain MLP; norms before (most sizes) or after (350m), whose embeddings are also narrower
    than its layers, with a matrix on the way in and one on the way out.
    """
    config = config.completed(DEFAULTS)
    config.only("layerdrop", 0, default=0)
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    narrow, tied = config.size("word_embed_proj_dim", hidden), config.flag("tie_word_embeddings", True)
    embedding, head = _embedding(config, hidden, narrow), _head(config, hidden, narrow, tied=tied)
    return decoder_model(
        config,
        name,
        embedding,
        {"attention": _attention(config), "mlp": _mlp(config, hidden)},
        head,
        layers=config.layers(),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(paths(embedding), "model.decoder.layers.{i}", paths(head)),
        family="opt",
        tied=tied,
        limit=config.size("max_position_embeddings"),
    )


def _norm(config: Config, path: str, hidden: int) -> Norm:
    affine = config.flag("layer_norm_elementwise_affine", True)
    return Norm(path=path, kind="layer", width=hidden, bias=affine, affine=affine)


def _embedding(config: Config, hidden: int, narrow: int) -> list[Operator]:
    rows = config.size("max_position_embeddings") + _OFFSET
    widen = Linear(path="model.decoder.project_in", inputs=narrow, outputs=hidden)
    return [
        Embedding(path="model.decoder.embed_tokens", rows=config.size("vocab_size"), width=narrow, split="vocabulary"),
        Embedding(path="model.decoder.embed_positions", rows=rows, width=hidden),
        *([widen] if narrow != hidden else ()),
        Add(width=hidden),
    ]


def _head(config: Config, hidden: int, narrow: int, *, tied: bool) -> list[Operator]:
    last = config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm", False)
    vocabulary = config.size("vocab_size")
    return [
        *([_norm(config, "model.decoder.final_layer_norm", hidden)] if last else ()),
        *([Linear(path="model.decoder.project_out", inputs=hidden, outputs=narrow)] if narrow != hidden else ()),
        Linear(path="lm_head", inputs=narrow, outputs=vocabulary, split="column", tied=tied),
        Loss(classes=vocabulary),
    ]


def _attention(config: Config) -> list[Operator]:
    heads, at, bias = read_heads(config), _AT + "self_attn", config.flag("enable_bias", True)
    hidden = heads.hidden
    inside: list[Operator] = [
        *(
            Linear(path=f"{at}.{name}", inputs=hidden, outputs=hidden, bias=bias, split="column")
            for name in ("q_proj", "k_proj", "v_proj")
        ),
        Activation(function="scale", width=hidden),
        *core(config, heads, at),
        Linear(path=f"{at}.out_proj", inputs=hidden, outputs=hidden, bias=bias, split="row"),
    ]
    return _around(config, inside, "self_attn_layer_norm", hidden)


def _mlp(config: Config, hidden: int) -> list[Operator]:
    ffn, bias = config.size("ffn_dim"), config.flag("enable_bias", True)
    inside: list[Operator] = [
        Linear(path=_AT + "fc1", inputs=hidden, outputs=ffn, bias=bias, split="column"),
        Activation(function=config.word("activation_function", "relu"), width=ffn),
        Linear(path=_AT + "fc2", inputs=ffn, outputs=hidden, bias=bias, split="row"),
    ]
    return _around(config, inside, "final_layer_norm", hidden)


def _around(config: Config, inside: list[Operator], norm: str, hidden: int) -> list[Operator]:
    """Norm, dropout and addition around a part."""
    norms, first = [_norm(config, _AT + norm, hidden)], config.flag("do_layer_norm_before", True)
    drop = dropout(config.chance("dropout", 0.1), hidden, "hidden", "")
    return [*(norms if first else ()), *inside, *drop, Add(width=hidden), *(() if first else norms)]
