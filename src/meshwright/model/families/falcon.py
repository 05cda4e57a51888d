"""Falcon (transformers.models.falcon): three kinds of block under one name."""

from dataclasses import dataclass

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, decoder_model, dropout, language_head
from meshwright.model.families.heads import Heads, core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

_AT = "transformer.h.{i}."
DEFAULTS = {
    "vocab_size": 65024,
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "activation": "gelu",
}
"""Of transformers' FalconConfig."""
ALIASES = {"n_embed": "hidden_size"}


@dataclass(frozen=True)
class _Kind:
    """Which of the blocks it is."""

    new: bool
    """Groups of query heads share a key and a value head (40b, 180b, 11b)."""
    parallel: bool
    """Attention and MLP side by side (all but rw)."""
    norms: int
    """Norms before attention and MLP that stand side by side: one for both, or two."""
    alibi: bool
    """Biases by distance instead of rotary positions (rw)."""
    bias: bool


def falcon(config: Config, name: str) -> ModelSpec:
    """Attention and a plain MLP: side by side on one norm with a single KV head (7b), or on one or two norms with few
    KV heads (40b, 180b, 11b), or one after the other with ALiBi (rw).
    """
    config = config.completed(DEFAULTS, ALIASES)
    hidden, vocabulary, kind = config.size("hidden_size"), config.size("vocab_size"), _kind(config)
    tied = config.flag("tie_word_embeddings", True)
    embed = Embedding(path="transformer.word_embeddings", rows=vocabulary, width=hidden, split="vocabulary")
    return decoder_model(
        config,
        name,
        [embed],
        _block(config, kind, hidden),
        language_head(_norm("transformer.ln_f", hidden), hidden, vocabulary, tied=tied),
        layers=config.layers(),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(("transformer.word_embeddings",), "transformer.h.{i}", ("transformer.ln_f", "lm_head")),
        parallel=kind.parallel,
        family="falcon",
        tied=tied,
        shared=("transformer.rotary_emb",),
    )


def _kind(config: Config) -> _Kind:
    new = config.flag("new_decoder_architecture", False)
    parallel = config.flag("parallel_attn", True)
    norms = config.size("num_ln_in_parallel_attn", 2 if new else 1)
    if new and not parallel:
        raise config.error("parallel_attn", "is always true with new_decoder_architecture (got false)")
    if norms > (2 if new else 1):
        raise config.error("num_ln_in_parallel_attn", f"{norms} norms are known with new_decoder_architecture only")
    return _Kind(new, parallel, norms, config.flag("alibi", False), config.flag("bias", False))


def _norm(path: str, hidden: int) -> Norm:
    return Norm(path=path, kind="layer", width=hidden, bias=True)


def _block(config: Config, kind: _Kind, hidden: int) -> Block:
    """Parts side by side add up to one sum that takes dropout; those in a row each have their own."""
    attention, mlp, add = _attention(config, kind), _mlp(config, kind, hidden), Add(width=hidden)
    drop = dropout(config.chance("hidden_dropout", 0.0), hidden, "hidden", "")
    if not kind.parallel:  # transformers takes attention_dropout for the hidden states here
        after = dropout(config.chance("attention_dropout", 0.0), hidden, "hidden", "")
        return {
            "attention": [_norm(_AT + "input_layernorm", hidden), *attention, *after, add],
            "mlp": [_norm(_AT + "post_attention_layernorm", hidden), *mlp, *drop, add],
        }
    if kind.norms == 1:
        norm = _norm(_AT + "input_layernorm", hidden)
        return {"attention": [norm, *attention], "mlp": [*mlp, add, *drop, add]}
    return {
        "attention": [_norm(_AT + "ln_attn", hidden), *attention],
        "mlp": [_norm(_AT + "ln_mlp", hidden), *mlp, add, *drop, add],
    }


def _heads(config: Config, kind: _Kind) -> Heads:
    heads = read_heads(config, kv_heads="num_kv_heads")
    if kind.new:
        return heads
    if config.flag("multi_query", True):
        return Heads(heads.hidden, heads.count, 1, heads.dim)
    if heads.kv != heads.count:
        raise config.error("num_kv_heads", f"{heads.kv} KV heads are known with new_decoder_architecture only")
    return heads


def _attention(config: Config, kind: _Kind) -> list[Operator]:
    heads, at = _heads(config, kind), _AT + "self_attention"
    turned = () if kind.alibi else (Rotary(width=(heads.count + heads.kv) * heads.dim),)
    attention, *dropped = core(config, heads, at, dropout_path=f"{at}.attention_dropout", alibi=kind.alibi)
    return [
        heads.fused(f"{at}.query_key_value", bias=kind.bias, interleaved=heads.kv > 1),
        *turned,
        attention,
        *(dropped if kind.alibi else ()),  # with rotary positions transformers leaves it out
        Linear(path=f"{at}.dense", inputs=heads.hidden, outputs=heads.hidden, bias=kind.bias, split="row"),
    ]


def _mlp(config: Config, kind: _Kind, hidden: int) -> list[Operator]:
    ffn, at = config.size("ffn_hidden_size", 4 * hidden), _AT + "mlp"
    return [
        Linear(path=f"{at}.dense_h_to_4h", inputs=hidden, outputs=ffn, bias=kind.bias, split="column"),
        Activation(function=config.word("activation", "gelu"), width=ffn),
        Linear(path=f"{at}.dense_4h_to_h", inputs=ffn, outputs=hidden, bias=kind.bias, split="row"),
    ]
