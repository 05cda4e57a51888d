"""Small models of every shape that a plan can meet: a decoder, tied ends, routed experts, two streams, convolutions."""

from typing import Any

from meshwright.model.hf_config import from_config
from meshwright.model.spec import ModelSpec


def llama(
    *, layers: int = 4, hidden: int = 32, ffn: int = 48, heads: int = 8, kv_heads: int = 4, rows: int = 64
) -> ModelSpec:
    """A Llama from its sizes; `rows` is the vocabulary."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": hidden // heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": rows,
    }
    return from_config(config, "tiny")


def gpt2(
    *, layers: int = 4, hidden: int = 32, heads: int = 8, rows: int = 64, attention_dropout: float = 0.0
) -> ModelSpec:
    """A GPT-2 from its sizes, its embedding and head tied."""
    config = {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": rows,
        "n_positions": 65536,
        "attn_pdrop": attention_dropout,
    }
    return from_config(config, "tiny-gpt2")


def mixture(model: ModelSpec, experts: int = 8) -> ModelSpec:
    """A model with its first numbered layer as it is, and routed experts in all others."""
    data = model.as_data()
    place, stack = next((place, stack) for place, stack in enumerate(data["stacks"]) if "." in stack["span"])
    base, _, last = stack["span"].replace(".", "-").split("-")
    routed = [
        {"op": "router", "hidden": stack["output"], "experts": experts, "top_k": 2},
        {"op": "experts", "count": experts, "top_k": 2, "hidden": stack["output"], "ffn": 4 * stack["output"]},
    ]
    attention = stack["parts"][0]
    dense = stack | {"span": f"{base}.0"}
    sparse = stack | {
        "span": f"{base}.1-{last}",
        "reads": [f"{base}.0"],
        "parts": [attention, {"name": "experts", "operators": routed}],
    }
    data["stacks"][place : place + 1] = [dense, sparse]
    return ModelSpec.from_data({"meshwright_model": 1} | data | {"name": f"{model.name}-moe"})


def _attention(width: int, *, causal: bool, cross: str | None = None) -> list[dict[str, Any]]:
    core = {"op": "attention", "heads": 4, "kv_heads": 4, "head_dim": width // 4, "causal": causal}
    return [
        {
            "op": "linear",
            "path": "qkv",
            "inputs": width,
            "outputs": 3 * width,
            "segments": [width] * 3,
            "split": "column",
        },
        core | ({"cross": cross} if cross else {}),
        {"op": "linear", "path": "out", "inputs": width, "outputs": width, "split": "row"},
    ]


def listener() -> ModelSpec:
    """Two streams: an encoder on 48 frames (the model says so) behind a convolution, and a decoder that sees them."""
    convolution = {"op": "convolution", "path": "conv", "inputs": 4, "outputs": 16, "kernel": [3]}
    stacks = [
        {"span": "frames", "stream": "audio", "output": 16, "parts": [{"name": "conv", "operators": [convolution]}]},
        {
            "span": "encoder.0-1",
            "stream": "audio",
            "reads": ["frames"],
            "output": 16,
            "parts": [{"name": "attention", "operators": _attention(16, causal=False)}],
        },
        {
            "span": "embed",
            "output": 16,
            "parts": [{"name": "table", "operators": [{"op": "embedding", "path": "embed", "rows": 64, "width": 16}]}],
        },
        {
            "span": "decoder.0-1",
            "reads": ["embed"],
            "side": ["encoder.1"],
            "output": 16,
            "parts": [
                {"name": "attention", "operators": _attention(16, causal=True)},
                {"name": "cross", "operators": _attention(16, causal=False, cross="audio")},
            ],
        },
    ]
    streams = {"audio": {"length": 48}, "tokens": {}}
    data = {
        "name": "listener",
        "family": "listener",
        "streams": streams,
        "stacks": [s | {"modules": []} for s in stacks],
    }
    return ModelSpec.from_data({"meshwright_model": 1} | data)


def resnet() -> ModelSpec:
    """Convolutions with batch statistics."""
    operators = [
        {"op": "convolution", "path": "conv", "inputs": 4, "outputs": 4, "kernel": [3, 3], "positions": 16},
        {"op": "norm", "path": "norm", "kind": "batch", "width": 4},
    ]
    stack = {"span": "block.0-3", "stream": "images", "modules": [], "output": 4}
    stack["parts"] = [{"name": "conv", "operators": operators}]
    data = {"name": "resnet", "family": "resnet", "streams": {"images": {"length": 1}}, "stacks": [stack]}
    return ModelSpec.from_data({"meshwright_model": 1} | data)


def data_of(model: ModelSpec) -> dict[str, Any]:
    """The document as plain data."""
    return {"meshwright_model": 1} | model.as_data()
