"""A Hugging Face `config.json` → ModelSpec, without importing transformers. One function a family, in one table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright.document import read_text
from meshwright.errors import DocumentError, did_you_mean
from meshwright.explain import explain, shown
from meshwright.model.operators import (
    Activation,
    Add,
    Attention,
    Dropout,
    Embedding,
    Linear,
    Loss,
    Norm,
    Operator,
    Rotary,
)
from meshwright.model.spec import LayerStack, ModelSpec, Part, Tie

MAX_SIZE = 10**9
"""Of any one number in a configuration."""


class _Config:
    """A configuration's fields: one that is missing, or no number, is an error that names it."""

    def __init__(self, fields: dict[str, Any], source: str) -> None:
        self.fields, self.source = fields, source

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.fields.get(name)
        value = default if value is None else value
        if value is None:
            raise DocumentError(f"{self.source}: {name}: required key is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise DocumentError(f"{self.source}: {name}: must be a whole number from 1 to {MAX_SIZE:,} (got {shown(value)})")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise DocumentError(f"{self.source}: {name}: must be true or false (got {shown(value)})")
        return value

    def chance(self, name: str, default: float) -> float:
        """A probability under one."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise DocumentError(f"{self.source}: {name}: must be a probability under 1 (got {shown(value)})")
        return float(value)


def _llama(config: _Config, name: str) -> ModelSpec:
    hidden, ffn = config.size("hidden_size"), config.size("intermediate_size")
    heads = config.size("num_attention_heads")
    if heads > hidden and "head_dim" not in config.fields:
        raise DocumentError(f"{config.source}: num_attention_heads: {heads} is more than hidden_size, which is {hidden}")
    kv_heads, head_dim = config.size("num_key_value_heads", heads), config.size("head_dim", hidden // heads)
    layers, vocabulary = config.size("num_hidden_layers"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", False)
    bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    at = "model.layers.{i}."
    attention: tuple[Operator, ...] = (
        Norm(path=at + "input_layernorm", kind="rms", width=hidden),
        Linear(path=at + "self_attn.q_proj", inputs=hidden, outputs=heads * head_dim, bias=bias, split="column"),
        Linear(path=at + "self_attn.k_proj", inputs=hidden, outputs=kv_heads * head_dim, bias=bias, split="column"),
        Linear(path=at + "self_attn.v_proj", inputs=hidden, outputs=kv_heads * head_dim, bias=bias, split="column"),
        Rotary(width=(heads + kv_heads) * head_dim),
        Attention(path=at + "self_attn", heads=heads, kv_heads=kv_heads, head_dim=head_dim),
        *_dropout(config.chance("attention_dropout", 0.0), heads, "attention", at + "self_attn"),
        Linear(path=at + "self_attn.o_proj", inputs=heads * head_dim, outputs=hidden, bias=bias, split="row"),
        Add(width=hidden),
    )
    mlp: tuple[Operator, ...] = (
        Norm(path=at + "post_attention_layernorm", kind="rms", width=hidden),
        Linear(path=at + "mlp.gate_proj", inputs=hidden, outputs=ffn, bias=mlp_bias, split="column"),
        Linear(path=at + "mlp.up_proj", inputs=hidden, outputs=ffn, bias=mlp_bias, split="column"),
        Activation(function="silu", width=ffn, gated=True),
        Linear(path=at + "mlp.down_proj", inputs=ffn, outputs=hidden, bias=mlp_bias, split="row"),
        Add(width=hidden),
    )
    head: tuple[Operator, ...] = (
        Norm(path="model.norm", kind="rms", width=hidden),
        Linear(path="lm_head", inputs=hidden, outputs=vocabulary, split="column", tied=tied),
        Loss(classes=vocabulary),
    )
    embed = Embedding(path="model.embed_tokens", rows=vocabulary, width=hidden, split="vocabulary")
    return ModelSpec(
        name=name,
        family="llama",
        source=config.source,
        stacks=(
            LayerStack(
                span="embed", modules=("model.embed_tokens",), output=hidden, parts=(Part(name="embedding", operators=(embed,)),)
            ),
            LayerStack(
                span=f"decoder.0-{layers - 1}",
                modules=("model.layers.{i}",),
                reads=("embed",),
                output=hidden,
                parts=(Part(name="attention", operators=attention), Part(name="mlp", operators=mlp)),
            ),
            LayerStack(
                span="head",
                modules=("model.norm", "lm_head"),
                reads=(f"decoder.{layers - 1}",),
                output=vocabulary,
                parts=(Part(name="head", operators=head),),
            ),
        ),
        shared=("model.rotary_emb",),
        ties=(Tie(name="embedding", owner="model.embed_tokens.weight", copies=("lm_head.weight",)),) if tied else (),
    )


def _gpt2(config: _Config, name: str) -> ModelSpec:
    hidden, heads, layers = config.size("n_embd"), config.size("n_head"), config.size("n_layer")
    vocabulary, positions = config.size("vocab_size"), config.size("n_positions", 1024)
    if hidden % heads:
        raise DocumentError(f"{config.source}: n_head: {heads} heads do not divide n_embd, which is {hidden}")
    ffn = config.size("n_inner", 4 * hidden)
    residual, weights = config.chance("resid_pdrop", 0.1), config.chance("attn_pdrop", 0.1)
    tied = config.flag("tie_word_embeddings", True)
    at = "transformer.h.{i}."
    fused = (hidden, hidden, hidden)
    attention: tuple[Operator, ...] = (
        Norm(path=at + "ln_1", kind="layer", width=hidden, bias=True),
        Linear(path=at + "attn.c_attn", inputs=hidden, outputs=3 * hidden, bias=True, split="column", segments=fused),
        Attention(path=at + "attn", heads=heads, kv_heads=heads, head_dim=hidden // heads),
        *_dropout(weights, heads, "attention", at + "attn.attn_dropout"),
        Linear(path=at + "attn.c_proj", inputs=hidden, outputs=hidden, bias=True, split="row"),
        *_dropout(residual, hidden, "hidden", at + "attn.resid_dropout"),
        Add(width=hidden),
    )
    mlp: tuple[Operator, ...] = (
        Norm(path=at + "ln_2", kind="layer", width=hidden, bias=True),
        Linear(path=at + "mlp.c_fc", inputs=hidden, outputs=ffn, bias=True, split="column"),
        Activation(function="gelu_new", width=ffn),
        Linear(path=at + "mlp.c_proj", inputs=ffn, outputs=hidden, bias=True, split="row"),
        *_dropout(residual, hidden, "hidden", at + "mlp.dropout"),
        Add(width=hidden),
    )
    embedding: tuple[Operator, ...] = (
        Embedding(path="transformer.wte", rows=vocabulary, width=hidden, split="vocabulary"),
        Embedding(path="transformer.wpe", rows=positions, width=hidden),
        Add(width=hidden),
        *_dropout(config.chance("embd_pdrop", 0.1), hidden, "hidden", "transformer.drop"),
    )
    head: tuple[Operator, ...] = (
        Norm(path="transformer.ln_f", kind="layer", width=hidden, bias=True),
        Linear(path="lm_head", inputs=hidden, outputs=vocabulary, split="column", tied=tied),
        Loss(classes=vocabulary),
    )
    return ModelSpec(
        name=name,
        family="gpt2",
        source=config.source,
        stacks=(
            LayerStack(
                span="embed",
                modules=("transformer.wte", "transformer.wpe", "transformer.drop"),
                output=hidden,
                parts=(Part(name="embedding", operators=embedding),),
            ),
            LayerStack(
                span=f"decoder.0-{layers - 1}",
                modules=("transformer.h.{i}",),
                reads=("embed",),
                output=hidden,
                parts=(Part(name="attention", operators=attention), Part(name="mlp", operators=mlp)),
            ),
            LayerStack(
                span="head",
                modules=("transformer.ln_f", "lm_head"),
                reads=(f"decoder.{layers - 1}",),
                output=vocabulary,
                parts=(Part(name="head", operators=head),),
            ),
        ),
        ties=(Tie(name="embedding", owner="transformer.wte.weight", copies=("lm_head.weight",)),) if tied else (),
    )


def _dropout(probability: float, width: int, of: Any, path: str) -> tuple[Dropout, ...]:
    return (Dropout(path=path, width=width, probability=probability, of=of),) if probability else ()


FAMILIES: dict[str, Callable[[_Config, str], ModelSpec]] = {"llama": _llama, "gpt2": _gpt2}
"""The value of `model_type` → how to read the rest."""


def from_config(config: Any, name: str = "", source: str = "config") -> ModelSpec:
    """A `config.json` as a dictionary → ModelSpec. Raises DocumentError where a field is missing or the family is unknown."""
    if not isinstance(config, dict):
        raise DocumentError(f"{source}: a configuration is a mapping with a 'model_type'")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        said = f"{shown(kind)} is no family that is known" if kind is not None else "required key is missing"
        raise DocumentError(f"{source}: model_type: {said}; {did_you_mean(str(kind), FAMILIES)}")
    name = name or str(config.get("_name_or_path") or kind)
    try:  # JSON can hold halves of characters, YAML cannot
        return FAMILIES[kind](_Config(config, source), name.encode(errors="replace").decode())
    except ValidationError as error:  # sizes that do not go together
        raise DocumentError(explain(error, source)) from None


def read_config(path: str | Path, name: str = "") -> ModelSpec:
    """A `config.json`, or the folder that holds one → ModelSpec."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        config = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DocumentError(f"{file}{line}: not JSON: {getattr(error, 'msg', error)}") from None
    return from_config(config, name or file.resolve().parent.name, str(file))
