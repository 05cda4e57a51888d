"""GPT-NeoX and Pythia (transformers.models.gpt_neox)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, decoder_model, dropout, language_head
from meshwright.model.families.heads import core, read_heads, rotary_share
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

_AT = "gpt_neox.layers.{i}."
DEFAULTS = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_act": "gelu",
}
"""Of transformers' GPTNeoXConfig."""


def gpt_neox(config: Config, name: str) -> ModelSpec:
    """Attention and a plain MLP, side by side or one after the other, each with a norm of its own."""
    config = config.completed(DEFAULTS)
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    tied, parallel = config.flag("tie_word_embeddings", False), config.flag("use_parallel_residual", True)
    norm = Norm(path="gpt_neox.final_layer_norm", kind="layer", width=hidden, bias=True)
    embedding: list[Operator] = [
        Embedding(path="gpt_neox.embed_in", rows=vocabulary, width=hidden, split="vocabulary"),
        *dropout(config.chance("hidden_dropout", 0.0), hidden, "hidden", "gpt_neox.emb_dropout"),
    ]
    return decoder_model(
        config,
        name,
        embedding,
        _block(config, hidden, parallel=parallel),
        language_head(norm, hidden, vocabulary, tied=tied),
        layers=config.layers(),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(
            ("gpt_neox.embed_in", "gpt_neox.emb_dropout"),
            "gpt_neox.layers.{i}",
            ("gpt_neox.final_layer_norm", "lm_head"),
        ),
        parallel=parallel,
        family="gpt_neox",
        tied=tied,
        shared=("gpt_neox.rotary_emb",),
    )


def _block(config: Config, hidden: int, *, parallel: bool) -> Block:
    attention, mlp, add = _attention(config), _mlp(config, hidden), Add(width=hidden)
    if parallel:
        return {"attention": attention, "mlp": [*mlp, add, add]}
    return {"attention": [*attention, add], "mlp": [*mlp, add]}


def _attention(config: Config) -> list[Operator]:
    heads, at = read_heads(config), _AT + "attention"
    bias, rotated = config.flag("attention_bias", True), int(heads.dim * rotary_share(config, "rotary_pct", 0.25))
    return [
        Norm(path=_AT + "input_layernorm", kind="layer", width=heads.hidden, bias=True),
        heads.fused(f"{at}.query_key_value", bias=bias, interleaved=True),
        Rotary(width=2 * heads.count * rotated),
        *core(config, heads, at),
        Linear(path=f"{at}.dense", inputs=heads.hidden, outputs=heads.hidden, bias=bias, split="row"),
        *dropout(config.chance("hidden_dropout", 0.0), heads.hidden, "hidden", _AT + "post_attention_dropout"),
    ]


def _mlp(config: Config, hidden: int) -> list[Operator]:
    ffn, at = config.size("intermediate_size"), _AT + "mlp"
    return [
        Norm(path=_AT + "post_attention_layernorm", kind="layer", width=hidden, bias=True),
        Linear(path=f"{at}.dense_h_to_4h", inputs=hidden, outputs=ffn, bias=True, split="column"),
        Activation(function=config.word("hidden_act", "gelu"), width=ffn),
        Linear(path=f"{at}.dense_4h_to_h", inputs=ffn, outputs=hidden, bias=True, split="row"),
        *dropout(config.chance("hidden_dropout", 0.0), hidden, "hidden", _AT + "post_mlp_dropout"),
    ]
