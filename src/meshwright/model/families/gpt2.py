"""GPT-2 (transformers.models.gpt2)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, dropout, language_head
from meshwright.model.families.heads import core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator
from meshwright.model.spec import ModelSpec

_AT = "transformer.h.{i}."
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""Other names of fields, as transformers' GPT2Config and GPTJConfig take them."""


def gpt2(config: Config, name: str) -> ModelSpec:
    """Pre-norm blocks: attention with one fused matrix for query, key and value, learned positions, a plain MLP."""
    config = config.completed({}, ALIASES)
    config.only("add_cross_attention", False, default=False)
    hidden, vocabulary = config.size("n_embd"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", True)
    norm = Norm(path="transformer.ln_f", kind="layer", width=hidden, bias=True)
    return decoder_model(
        config,
        name,
        _embedding(config, hidden, vocabulary),
        {"attention": _attention(config, hidden), "mlp": _mlp(config, hidden)},
        language_head(norm, hidden, vocabulary, tied=tied),
        layers=config.layers("n_layer"),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(
            ("transformer.wte", "transformer.wpe", "transformer.drop"),
            "transformer.h.{i}",
            ("transformer.ln_f", "lm_head"),
        ),
        family="gpt2",
        tied=tied,
        limit=config.size("n_positions", 1024),
    )


def _embedding(config: Config, hidden: int, vocabulary: int) -> list[Operator]:
    return [
        Embedding(path="transformer.wte", rows=vocabulary, width=hidden, split="vocabulary"),
        Embedding(path="transformer.wpe", rows=config.size("n_positions", 1024), width=hidden),
        Add(width=hidden),
        *dropout(config.chance("embd_pdrop", 0.1), hidden, "hidden", "transformer.drop"),
    ]


def _attention(config: Config, hidden: int) -> list[Operator]:
    heads, at = read_heads(config, hidden="n_embd", heads="n_head"), _AT + "attn"
    return [
        Norm(path=_AT + "ln_1", kind="layer", width=hidden, bias=True),
        heads.fused(f"{at}.c_attn", bias=True),
        *core(config, heads, at, dropout_field="attn_pdrop", default=0.1, dropout_path=f"{at}.attn_dropout"),
        Linear(path=f"{at}.c_proj", inputs=hidden, outputs=hidden, bias=True, split="row"),
        *dropout(config.chance("resid_pdrop", 0.1), hidden, "hidden", f"{at}.resid_dropout"),
        Add(width=hidden),
    ]


def _mlp(config: Config, hidden: int) -> list[Operator]:
    ffn, at = config.size("n_inner", 4 * hidden), _AT + "mlp"
    return [
        Norm(path=_AT + "ln_2", kind="layer", width=hidden, bias=True),
        Linear(path=f"{at}.c_fc", inputs=hidden, outputs=ffn, bias=True, split="column"),
        Activation(function=config.word("activation_function", "gelu_new"), width=ffn),
        Linear(path=f"{at}.c_proj", inputs=ffn, outputs=hidden, bias=True, split="row"),
        *dropout(config.chance("resid_pdrop", 0.1), hidden, "hidden", f"{at}.dropout"),
        Add(width=hidden),
    ]
