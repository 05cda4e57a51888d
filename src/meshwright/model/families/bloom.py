"""BLOOM (transformers.models.bloom)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, dropout, language_head
from meshwright.model.families.heads import core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator
from meshwright.model.spec import ModelSpec

_AT = "transformer.h.{i}."
DEFAULTS = {"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8}
"""Of transformers' BloomConfig."""
ALIASES = {"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}


def bloom(config: Config, name: str) -> ModelSpec:
    """No positions but ALiBi, a norm on the embedding, one fused matrix for query, key and value, a plain MLP."""
    config = config.completed(DEFAULTS, ALIASES)
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", True)
    embedding: list[Operator] = [
        Embedding(path="transformer.word_embeddings", rows=vocabulary, width=hidden, split="vocabulary"),
        _norm("transformer.word_embeddings_layernorm", hidden),
    ]
    return decoder_model(
        config,
        name,
        embedding,
        {"attention": _attention(config), "mlp": _mlp(config, hidden)},
        language_head(_norm("transformer.ln_f", hidden), hidden, vocabulary, tied=tied),
        layers=config.layers("n_layer"),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(
            ("transformer.word_embeddings", "transformer.word_embeddings_layernorm"),
            "transformer.h.{i}",
            ("transformer.ln_f", "lm_head"),
        ),
        family="bloom",
        tied=tied,
    )


def _norm(path: str, hidden: int) -> Norm:
    return Norm(path=path, kind="layer", width=hidden, bias=True)


def _attention(config: Config) -> list[Operator]:
    heads, at = read_heads(config, heads="n_head"), _AT + "self_attention"
    return [
        _norm(_AT + "input_layernorm", heads.hidden),
        heads.fused(f"{at}.query_key_value", bias=True, interleaved=True),
        *core(config, heads, at, dropout_path=f"{at}.attention_dropout", alibi=True),
        Linear(path=f"{at}.dense", inputs=heads.hidden, outputs=heads.hidden, bias=True, split="row"),
        *dropout(config.chance("hidden_dropout", 0.0), heads.hidden, "hidden", at),
        Add(width=heads.hidden),
    ]


def _mlp(config: Config, hidden: int) -> list[Operator]:
    at = _AT + "mlp"
    return [
        _norm(_AT + "post_attention_layernorm", hidden),
        Linear(path=f"{at}.dense_h_to_4h", inputs=hidden, outputs=4 * hidden, bias=True, split="column"),
        Activation(path=f"{at}.gelu_impl", function="bloom_gelu", width=4 * hidden),
        Linear(path=f"{at}.dense_4h_to_h", inputs=4 * hidden, outputs=hidden, bias=True, split="row"),
        *dropout(config.chance("hidden_dropout", 0.0), hidden, "hidden", at),
        Add(width=hidden),
    ]
