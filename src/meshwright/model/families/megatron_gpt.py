"""A GPT of Megatron-LM by its shape alone: the arguments of its command line as a configuration.

Module paths are those of Megatron-Core's GPTModel with the local layer spec (megatron/core/models/gpt, 2024).
"""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, dropout, paths
from meshwright.model.families.heads import Heads, core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Loss, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

_AT = "decoder.layers.{i}."
_NORMS = ("LayerNorm", "RMSNorm")
_POSITIONS = ("learned_absolute", "rope", "none")
ALIASES = {
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_query_groups",
    "intermediate_size": "ffn_hidden_size",
}


def megatron_gpt(config: Config, name: str) -> ModelSpec:
    """Megatron-LM's defaults: learned positions, layer norms, biases, a plain MLP, one table for words and head. Fields
    have the names of its arguments; `vocab_size` counts padding too, unless `padded_vocab_size` does.
    """
    config = config.completed({}, ALIASES)
    config.only("position_embedding_type", *_POSITIONS, default="learned_absolute")
    config.only("normalization", *_NORMS, default="LayerNorm")
    hidden, vocabulary = config.size("hidden_size"), _rows(config)
    tied, heads = not config.flag("untie_embeddings_and_output_weights", False), _heads(config)
    positions = config.word("position_embedding_type", "learned_absolute")
    table = positions == "learned_absolute"
    learned = config.size("max_position_embeddings", config.optional_size("seq_length")) if table else None
    embedding = _embedding(config, hidden, vocabulary, learned)
    return decoder_model(
        config,
        name,
        embedding,
        {"attention": _attention(config, heads, turned=positions == "rope"), "mlp": _mlp(config, hidden)},
        [
            _norm(config, "decoder.final_layernorm", hidden),
            Linear(path="output_layer", inputs=hidden, outputs=vocabulary, split="column", tied=tied),
            Loss(classes=vocabulary),
        ],
        layers=config.layers("num_layers"),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(
            paths(embedding),
            "decoder.layers.{i}",
            ("decoder.final_layernorm", "output_layer"),
        ),
        family="megatron-gpt",
        tied=tied,
        limit=learned,
        shared=("rotary_pos_emb",) if positions == "rope" else (),
    )


def _heads(config: Config) -> Heads:
    return read_heads(config, kv_heads="num_query_groups", head_dim="kv_channels")


def _rows(config: Config) -> int:
    """Rows of the table of words, which Megatron-LM pads."""
    return config.optional_size("padded_vocab_size") or config.size("vocab_size")


def _norm(config: Config, path: str, width: int, *, heads: int | None = None) -> Norm:
    if config.word("normalization", "LayerNorm") == "RMSNorm":
        return Norm(path=path, kind="rms", width=width, heads=heads)
    return Norm(path=path, kind="layer", width=width, bias=True, heads=heads)


def _embedding(config: Config, hidden: int, vocabulary: int, learned: int | None) -> list[Operator]:
    table = "embedding.position_embeddings"
    return [
        Embedding(path="embedding.word_embeddings", rows=vocabulary, width=hidden, split="vocabulary"),
        *([Embedding(path=table, rows=learned, width=hidden), Add(width=hidden)] if learned else ()),
        *dropout(config.chance("hidden_dropout", 0.1), hidden, "hidden", "embedding.embedding_dropout"),
    ]


def _attention(config: Config, heads: Heads, *, turned: bool) -> list[Operator]:
    at, bias = _AT + "self_attention", config.flag("add_bias_linear", True)
    norms = config.flag("qk_layernorm", False)
    rotated = int(heads.dim * config.share("rotary_percent", 1.0))
    return [
        _norm(config, _AT + "input_layernorm", heads.hidden),
        heads.fused(f"{at}.linear_qkv", bias=bias or config.flag("add_qkv_bias", False), interleaved=True),
        *([_norm(config, f"{at}.q_layernorm", heads.dim, heads=heads.count)] if norms else ()),
        *([_norm(config, f"{at}.k_layernorm", heads.dim, heads=heads.kv)] if norms else ()),
        *([Rotary(width=(heads.count + heads.kv) * rotated)] if turned else ()),
        *core(config, heads, f"{at}.core_attention", default=0.1),
        Linear(path=f"{at}.linear_proj", inputs=heads.queries, outputs=heads.hidden, bias=bias, split="row"),
        *dropout(config.chance("hidden_dropout", 0.1), heads.hidden, "hidden", ""),
        Add(width=heads.hidden),
    ]


def _mlp(config: Config, hidden: int) -> list[Operator]:
    at, bias, gated = _AT + "mlp", config.flag("add_bias_linear", True), config.flag("swiglu", False)
    ffn = config.size("ffn_hidden_size", _usual_ffn(hidden, gated=gated))
    return [
        _norm(config, _AT + "pre_mlp_layernorm", hidden),
        Linear(
            path=f"{at}.linear_fc1",
            inputs=hidden,
            outputs=ffn * (1 + gated),
            bias=bias,
            split="column",
            segments=(ffn, ffn) if gated else (),
        ),
        Activation(function="silu" if gated else "gelu", width=ffn, gated=gated),
        Linear(path=f"{at}.linear_fc2", inputs=ffn, outputs=hidden, bias=bias, split="row"),
        *dropout(config.chance("hidden_dropout", 0.1), hidden, "hidden", ""),
        Add(width=hidden),
    ]


def _usual_ffn(hidden: int, *, gated: bool) -> int:
    """Megatron-LM's own choice: 4 h, and for gated ones two thirds of that, down to a multiple of 64."""
    return max(64, int(4 * hidden * 2 / 3) // 64 * 64) if gated else 4 * hidden
