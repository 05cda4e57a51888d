"""Llama 1 to 3.x (transformers.models.llama)."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_stacks, dropout, embedding_tie, language_head
from meshwright.model.operators import Activation, Add, Attention, Embedding, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec

_AT = "model.layers.{i}."


def llama(config: Config, name: str) -> ModelSpec:
    """Pre-norm blocks: grouped-query attention with rotary positions, a gated MLP."""
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", False)
    embed = Embedding(path="model.embed_tokens", rows=vocabulary, width=hidden, split="vocabulary")
    norm = Norm(path="model.norm", kind="rms", width=hidden)
    return ModelSpec(
        name=name,
        family="llama",
        source=config.source,
        stacks=decoder_stacks(
            [embed],
            {"attention": _attention(config, hidden), "mlp": _mlp(config, hidden)},
            language_head(norm, hidden, vocabulary, tied=tied),
            layers=config.size("num_hidden_layers"),
            hidden=hidden,
            vocabulary=vocabulary,
            modules=(("model.embed_tokens",), "model.layers.{i}", ("model.norm", "lm_head")),
        ),
        shared=("model.rotary_emb",),
        ties=embedding_tie("model.embed_tokens.weight", tied=tied),
    )


def _attention(config: Config, hidden: int) -> list[Operator]:
    heads = config.size("num_attention_heads")
    if hidden % heads and config.fields.get("head_dim") is None:
        raise config.error("num_attention_heads", f"{heads} heads do not divide hidden_size, which is {hidden}")
    kv_heads, head_dim = config.size("num_key_value_heads", heads), config.size("head_dim", hidden // heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"{kv_heads} KV heads do not divide the {heads} heads")
    bias, at = config.flag("attention_bias", False), _AT + "self_attn"
    return [
        Norm(path=_AT + "input_layernorm", kind="rms", width=hidden),
        Linear(path=f"{at}.q_proj", inputs=hidden, outputs=heads * head_dim, bias=bias, split="column"),
        Linear(path=f"{at}.k_proj", inputs=hidden, outputs=kv_heads * head_dim, bias=bias, split="column"),
        Linear(path=f"{at}.v_proj", inputs=hidden, outputs=kv_heads * head_dim, bias=bias, split="column"),
        Rotary(width=(heads + kv_heads) * head_dim),
        Attention(path=at, heads=heads, kv_heads=kv_heads, head_dim=head_dim),
        *dropout(config.chance("attention_dropout", 0.0), heads, "attention", at),
        Linear(path=f"{at}.o_proj", inputs=heads * head_dim, outputs=hidden, bias=bias, split="row"),
        Add(width=hidden),
    ]


def _mlp(config: Config, hidden: int) -> list[Operator]:
    ffn, bias, at = config.size("intermediate_size"), config.flag("mlp_bias", False), _AT + "mlp"
    return [
        Norm(path=_AT + "post_attention_layernorm", kind="rms", width=hidden),
        Linear(path=f"{at}.gate_proj", inputs=hidden, outputs=ffn, bias=bias, split="column"),
        Linear(path=f"{at}.up_proj", inputs=hidden, outputs=ffn, bias=bias, split="column"),
        Activation(function=config.word("hidden_act", "silu"), width=ffn, gated=True),
        Linear(path=f"{at}.down_proj", inputs=ffn, outputs=hidden, bias=bias, split="row"),
        Add(width=hidden),
    ]
