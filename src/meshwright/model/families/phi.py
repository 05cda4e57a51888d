"""Phi 1 to 2 (transformers.models.phi), Phi 3 and 4 (phi3)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, dropout, language_head
from meshwright.model.families.heads import Heads, core, read_heads, rotary_share
from meshwright.model.families.llama import AT, Style, rotary_decoder, uniform_block
from meshwright.model.operators import Activation, Add, Embedding, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 51200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "hidden_act": "gelu_new",
}
"""Of transformers' PhiConfig."""
DEFAULTS_3 = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
}
"""Of transformers' Phi3Config."""


def phi3(config: Config, name: str) -> ModelSpec:
    """Llama's blocks with fused matrices, dropout before each addition, and in Phi 4 mini partly rotated heads."""
    config = config.completed(DEFAULTS_3)
    style = Style(
        fused=True,
        rotary=rotary_share(config, "partial_rotary_factor", 1.0),
        residual_dropout=config.chance("resid_pdrop", 0.0),
        activation=config.word("hidden_act", "silu"),
    )
    block = uniform_block(config, style, config.optional_size("sliding_window"))
    return rotary_decoder(config, name, block, family="phi3")


def phi(config: Config, name: str) -> ModelSpec:
    """Attention and a plain MLP side by side on one norm; biases everywhere, on the head too."""
    config = config.completed(DEFAULTS)
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", False)
    norm = Norm(path="model.final_layernorm", kind="layer", width=hidden, bias=True)
    embedding: list[Operator] = [
        Embedding(path="model.embed_tokens", rows=vocabulary, width=hidden, split="vocabulary"),
        *dropout(config.chance("embd_pdrop", 0.0), hidden, "hidden", "model.embed_dropout"),
    ]
    return decoder_model(
        config,
        name,
        embedding,
        {"attention": _attention(config), "mlp": _mlp(config, hidden)},
        language_head(norm, hidden, vocabulary, tied=tied, bias=True),
        layers=config.layers(),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(
            ("model.embed_tokens", "model.embed_dropout"),
            "model.layers.{i}",
            ("model.final_layernorm", "lm_head"),
        ),
        parallel=True,
        family="phi",
        tied=tied,
        shared=("model.rotary_emb",),
    )


def _attention(config: Config) -> list[Operator]:
    heads, at = read_heads(config, kv_heads="num_key_value_heads", head_dim="head_dim"), AT + "self_attn"
    widths = {"q_proj": heads.queries, "k_proj": heads.keys, "v_proj": heads.keys}
    rotated = int(heads.dim * rotary_share(config, "partial_rotary_factor", 0.5))
    return [
        Norm(path=AT + "input_layernorm", kind="layer", width=heads.hidden, bias=True),
        *(
            Linear(path=f"{at}.{name}", inputs=heads.hidden, outputs=width, bias=True, split="column")
            for name, width in widths.items()
        ),
        *(_query_norms(heads, at) if config.flag("qk_layernorm", False) else ()),
        Rotary(width=(heads.count + heads.kv) * rotated),
        *core(config, heads, at),
        Linear(path=f"{at}.dense", inputs=heads.queries, outputs=heads.hidden, bias=True, split="row"),
        *dropout(config.chance("resid_pdrop", 0.0), heads.hidden, "hidden", AT + "resid_dropout"),
    ]


def _query_norms(heads: Heads, at: str) -> list[Norm]:
    counts = {"q_layernorm": heads.count, "k_layernorm": heads.kv}
    width = heads.hidden // heads.count
    return [
        Norm(path=f"{at}.{name}", kind="layer", width=width, bias=True, heads=count) for name, count in counts.items()
    ]


def _mlp(config: Config, hidden: int) -> list[Operator]:
    ffn, at = config.size("intermediate_size"), AT + "mlp"
    return [
        Linear(path=f"{at}.fc1", inputs=hidden, outputs=ffn, bias=True, split="column"),
        Activation(function=config.word("hidden_act", "gelu_new"), width=ffn),
        Linear(path=f"{at}.fc2", inputs=ffn, outputs=hidden, bias=True, split="row"),
        *dropout(config.chance("resid_pdrop", 0.0), hidden, "hidden", AT + "resid_dropout"),
        Add(width=hidden),
        Add(width=hidden),
    ]
