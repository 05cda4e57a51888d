"""MPT (transformers.models.mpt)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, dropout, language_head
from meshwright.model.families.heads import core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator
from meshwright.model.spec import ModelSpec

_AT = "transformer.blocks.{i}."
DEFAULTS = {"vocab_size": 50368, "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048}
"""Of transformers' MptConfig."""
ALIASES = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}


def mpt(config: Config, name: str) -> ModelSpec:
    """ALiBi, no biases, norms without one, a plain MLP. transformers knows no other form, whatever fields say."""
    config = config.completed(DEFAULTS, ALIASES)
    inner = config.inner("attn_config")
    config.only("expansion_ratio", 4, default=4)
    config.only("no_bias", True, default=True)
    inner.only("alibi", True, default=True)
    inner.only("qk_ln", False, default=False)
    inner.only("attn_type", "multihead_attention", default="multihead_attention")
    hidden, vocabulary = config.size("d_model"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", True)
    embed = Embedding(path="transformer.wte", rows=vocabulary, width=hidden, split="vocabulary")
    norm = Norm(path="transformer.norm_f", kind="layer", width=hidden)
    return decoder_model(
        config,
        name,
        [embed],
        {"attention": _attention(config, inner), "mlp": _mlp(inner, hidden)},
        language_head(norm, hidden, vocabulary, tied=tied),
        layers=config.layers("n_layers"),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(("transformer.wte",), "transformer.blocks.{i}", ("transformer.norm_f", "lm_head")),
        family="mpt",
        tied=tied,
        limit=config.size("max_seq_len"),
    )


def _attention(config: Config, inner: Config) -> list[Operator]:
    heads, at = read_heads(config, hidden="d_model", heads="n_heads"), _AT + "attn"
    clamp = Activation(function="clamp", width=3 * heads.hidden)
    return [
        Norm(path=_AT + "norm_1", kind="layer", width=heads.hidden),
        heads.fused(f"{at}.Wqkv", bias=False),
        *([clamp] if inner.fields.get("clip_qkv") else ()),
        *core(inner, heads, at, dropout_field="attn_pdrop", alibi=True),
        Linear(path=f"{at}.out_proj", inputs=heads.hidden, outputs=heads.hidden, split="row"),
        *dropout(inner.chance("attn_pdrop", 0.0), heads.hidden, "hidden", _AT + "resid_attn_dropout"),
        Add(width=heads.hidden),
    ]


def _mlp(inner: Config, hidden: int) -> list[Operator]:
    at = _AT + "ffn"
    return [
        Norm(path=_AT + "norm_2", kind="layer", width=hidden),
        Linear(path=f"{at}.up_proj", inputs=hidden, outputs=4 * hidden, split="column"),
        Activation(function="gelu", width=4 * hidden),
        Linear(path=f"{at}.down_proj", inputs=4 * hidden, outputs=hidden, split="row"),
        *dropout(inner.chance("attn_pdrop", 0.0), hidden, "hidden", at),
        Add(width=hidden),
    ]
