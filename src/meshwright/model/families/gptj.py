"""GPT-J (transformers.models.gptj)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, dropout, language_head
from meshwright.model.families.gpt2 import ALIASES
from meshwright.model.families.heads import core, read_heads
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

_AT = "transformer.h.{i}."
DEFAULTS = {
    "vocab_size": 50400,
    "n_positions": 2048,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "rotary_dim": 64,
    "activation_function": "gelu_new",
}
"""Of transformers' GPTJConfig."""


def gptj(config: Config, name: str) -> ModelSpec:
    """Attention without biases and a plain MLP side by side on one norm; a head with a bias."""
    config = config.completed(DEFAULTS, ALIASES)
    hidden, vocabulary = config.size("n_embd"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", False)
    norm = Norm(path="transformer.ln_f", kind="layer", width=hidden, bias=True)
    embedding: list[Operator] = [
        Embedding(path="transformer.wte", rows=vocabulary, width=hidden, split="vocabulary"),
        *dropout(config.chance("embd_pdrop", 0.0), hidden, "hidden", "transformer.drop"),
    ]
    return decoder_model(
        config,
        name,
        embedding,
        {"attention": _attention(config), "mlp": _mlp(config, hidden)},
        language_head(norm, hidden, vocabulary, tied=tied, bias=True),
        layers=config.layers("n_layer"),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(
            ("transformer.wte", "transformer.drop"),
            "transformer.h.{i}",
            ("transformer.ln_f", "lm_head"),
        ),
        parallel=True,
        family="gptj",
        tied=tied,
        limit=config.size("n_positions"),
        shared=("transformer.rotary_emb",),
    )


def _attention(config: Config) -> list[Operator]:
    heads, at = read_heads(config, hidden="n_embd", heads="n_head"), _AT + "attn"
    rotated = config.size("rotary_dim")
    if rotated > heads.dim:
        raise config.error("rotary_dim", f"{rotated} is more than a head has, which is {heads.dim}")
    return [
        Norm(path=_AT + "ln_1", kind="layer", width=heads.hidden, bias=True),
        *(
            Linear(path=f"{at}.{name}", inputs=heads.hidden, outputs=heads.hidden, split="column")
            for name in ("q_proj", "k_proj", "v_proj")
        ),
        Rotary(width=2 * heads.count * rotated),
        *core(config, heads, at, dropout_field="attn_pdrop", dropout_path=f"{at}.attn_dropout"),
        Linear(path=f"{at}.out_proj", inputs=heads.hidden, outputs=heads.hidden, split="row"),
        *dropout(config.chance("resid_pdrop", 0.0), heads.hidden, "hidden", f"{at}.resid_dropout"),
    ]


def _mlp(config: Config, hidden: int) -> list[Operator]:
    ffn, at = config.size("n_inner", 4 * hidden), _AT + "mlp"
    return [
        Linear(path=f"{at}.fc_in", inputs=hidden, outputs=ffn, bias=True, split="column"),
        Activation(function=config.word("activation_function", "gelu_new"), width=ffn),
        Linear(path=f"{at}.fc_out", inputs=ffn, outputs=hidden, bias=True, split="row"),
        *dropout(config.chance("resid_pdrop", 0.0), hidden, "hidden", f"{at}.dropout"),
        Add(width=hidden),
        Add(width=hidden),
    ]
