"""The model in Megatron-LM's arguments: a configuration from them, and them from a model that is a GPT of its kind."""

from typing import Any

from meshwright.errors import DocumentError
from meshwright.export.fields import Fields
from meshwright.export.keys import COUNT, REAL, SETS, Codec, Key, words
from meshwright.model.hf_config import from_config
from meshwright.model.operators import Activation, Attention, Embedding, Experts, Linear, Norm, Operator, Rotary
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs

_OFF = Codec(lambda value: not SETS.read(value), lambda value: True)
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "GPTSentencePieceTokenizer": 32000, "Llama2Tokenizer": 32000}
"""Words that a kind of tokenizer has, where nothing is said; Megatron-LM reads its file."""
_PADS_TO = 128

MODEL_KEYS = (
    Key("--num-layers", "model.num_hidden_layers"),
    Key("--hidden-size", "model.hidden_size"),
    Key("--num-attention-heads", "model.num_attention_heads"),
    Key("--group-query-attention", "model.grouped", SETS, False),
    Key("--num-query-groups", "model.num_key_value_heads"),
    Key("--kv-channels", "model.kv_channels"),
    Key("--ffn-hidden-size", "model.intermediate_size"),
    Key("--max-position-embeddings", "model.max_position_embeddings"),
    Key(
        "--position-embedding-type",
        "model.position_embedding_type",
        words({"learned_absolute": "learned_absolute", "rope": "rope", "alibi": "alibi", "none": "none"}),
        "learned_absolute",
    ),
    Key("--rotary-percent", "model.rotary_percent", REAL, 1.0),
    Key(
        "--normalization",
        "model.normalization",
        words({"LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"}),
        "LayerNorm",
    ),
    Key("--swiglu", "model.swiglu", SETS, False),
    Key("--disable-bias-linear", "model.add_bias_linear", _OFF, True),
    Key("--add-qkv-bias", "model.add_qkv_bias", SETS, False),
    Key("--qk-layernorm", "model.qk_layernorm", SETS, False),
    Key("--untie-embeddings-and-output-weights", "model.untie_embeddings_and_output_weights", SETS, False),
    Key("--hidden-dropout", "model.hidden_dropout", REAL, 0.1),
    Key("--attention-dropout", "model.attention_dropout", REAL, 0.1),
    Key("--embed-layernorm", "model.embed_layernorm", SETS, False, old=True),
    Key("--num-experts", "model.num_experts"),
    Key("--moe-router-topk", "model.moe_router_topk", COUNT, 2),
    Key("--moe-ffn-hidden-size", "model.moe_ffn_hidden_size"),
    Key("--tokenizer-type", "tokenizer", Codec(str, str)),
    Key("--vocab-size", "model.vocab_size"),
    Key("--make-vocab-size-divisible-by", "model.pads_to", COUNT, _PADS_TO),
    Key("--pad-vocab-size-to", "model.padded_vocab_size", old=True),
)
_OURS = ("grouped", "embed_layernorm", "pads_to", "num_experts", "moe_router_topk", "moe_ffn_hidden_size")


def megatron_config(fields: Fields) -> dict[str, Any] | None:
    """The configuration of the model that the arguments describe; none where they do not. Raises DocumentError."""
    said = {name.removeprefix("model."): value for name, value in fields.items() if name.startswith("model.")}
    if "num_hidden_layers" not in said or "hidden_size" not in said:
        return None
    if not said["grouped"]:
        said.pop("num_key_value_heads", None)
    rows = said.get("padded_vocab_size") or _padded(said, fields)
    if said["position_embedding_type"] == "alibi":
        return _bloom(said, rows)
    if said.get("num_experts"):
        return _mixture(said, rows)
    rest = {name: value for name, value in said.items() if name not in _OURS}
    reach = {"max_position_embeddings": fields.get("recipe.sequence")}
    return {"model_type": "megatron-gpt"} | reach | rest | {"padded_vocab_size": rows}


def _padded(said: dict[str, Any], fields: Fields) -> int:
    rows = said.get("vocab_size") or _VOCABULARIES.get(str(fields.get("tokenizer", "GPT2BPETokenizer")))
    if rows is None:
        raise DocumentError("the arguments do not say how many words the tokenizer has; give --vocab-size or --model")
    to = int(said["pads_to"] * (fields.get("tp") or 1))
    return -(-int(rows) // to) * to


def _bloom(said: dict[str, Any], rows: int) -> dict[str, Any]:
    sizes = {"n_layer": said["num_hidden_layers"], "n_head": said["num_attention_heads"]}
    if not said["embed_layernorm"] or said["swiglu"] or said["normalization"] != "LayerNorm":
        raise DocumentError(
            "--position-embedding-type alibi: BLOOM alone is known with it, which has --embed-layernorm"
        )
    return {"model_type": "bloom", "hidden_size": said["hidden_size"], "vocab_size": rows} | sizes


def _mixture(said: dict[str, Any], rows: int) -> dict[str, Any]:
    gated = said["swiglu"] and said["normalization"] == "RMSNorm" and not said["add_bias_linear"]
    if not gated or said["position_embedding_type"] != "rope":
        raise DocumentError(
            "--num-experts: a mixture of experts is known with --swiglu, RMSNorm, rope and no biases; give --model"
        )
    return {
        "model_type": "mixtral",
        "hidden_size": said["hidden_size"],
        "num_hidden_layers": said["num_hidden_layers"],
        "num_attention_heads": said["num_attention_heads"],
        "num_key_value_heads": said.get("num_key_value_heads", said["num_attention_heads"]),
        "head_dim": said.get("kv_channels", said["hidden_size"] // said["num_attention_heads"]),
        "intermediate_size": said.get("moe_ffn_hidden_size", said.get("intermediate_size")),
        "num_local_experts": said["num_experts"],
        "num_experts_per_tok": said["moe_router_topk"],
        "tie_word_embeddings": not said["untie_embeddings_and_output_weights"],
        "vocab_size": rows,
    }


def megatron_fields(inputs: Inputs) -> Fields:
    """The arguments of a model, if a model of them has as many parameters; empty where it has not."""
    fields = _described(inputs.model)
    if not fields:
        return {}
    fields["model.vocab_size"] = inputs.model.vocabulary
    if fields["model.position_embedding_type"] == "rope" and isinstance(inputs.recipe.sequence, int):
        fields["model.max_position_embeddings"] = inputs.recipe.sequence
    fields["model.pads_to"] = _pad(inputs.model.vocabulary or 1, inputs.plan)
    told = {key.field: key.default for key in MODEL_KEYS} | fields
    known = {name: value for name, value in told.items() if isinstance(value, str | int | float)}
    try:
        config = megatron_config(known | {"tp": 1, "model.pads_to": 1})
        same = config is not None and from_config(config).parameters == inputs.model.parameters
    except DocumentError:
        same = False
    return fields if same else {}


def _pad(rows: int, plan: Any) -> int:
    """The usual multiple, or the largest that leaves the table as it is."""
    ways = max(plan.degree(row, stage.on, "tp", "tp+sp") for stage in plan.stages for row in stage.layers)
    return next((to for to in (_PADS_TO, 64, 32, 16, 8, 4, 2) if rows % (to * ways) == 0), 1)


def _described(model: ModelSpec) -> Fields:
    """What the operators of a chain of like layers say; empty where the model is none."""
    bodies = [stack for stack in model.stacks if "." in stack.span]
    if len(bodies) != 1 or len(model.stacks) != 3:
        return {}
    body, ends = bodies[0].operators, (*model.stacks[0].operators, *model.stacks[-1].operators)
    core = _first(body, Attention)
    activation, experts = _first(body, Activation), _first(body, Experts)
    if core is None or (activation is None and experts is None) or core.window or core.sinks or core.alibi:
        return {}
    hidden = model.stacks[0].output
    fields = {
        "model.num_hidden_layers": sum(layer.index is not None for layer in model.layers),
        "model.hidden_size": hidden,
        "model.num_attention_heads": core.heads,
        "model.grouped": core.kv_heads < core.heads,
        "model.kv_channels": core.head_dim,
        "model.max_position_embeddings": _reach(model),
        "model.untie_embeddings_and_output_weights": not any(isinstance(op, Linear) and op.tied for op in ends),
        "model.hidden_dropout": _dropout(body, "hidden"),
        "model.attention_dropout": _dropout(body, "attention"),
    }
    if core.kv_heads < core.heads:
        fields["model.num_key_value_heads"] = core.kv_heads
    return fields | _positions(body, core) | _norms(body, core, hidden) | _matrices(body, activation, experts)


def _first(operators: tuple[Operator, ...], kind: type) -> Any:
    return next((op for op in operators if isinstance(op, kind)), None)


def _reach(model: ModelSpec) -> int:
    tables = [op for op in model.stacks[0].operators if isinstance(op, Embedding) and op.split is None]
    return tables[0].rows if tables else max((stream.limit or 0 for stream in model.streams.values()), default=0) or 1


def _dropout(operators: tuple[Operator, ...], of: str) -> float:
    return next((op.probability for op in operators if op.op == "dropout" and op.of == of), 0.0)


def _positions(body: tuple[Operator, ...], core: Attention) -> Fields:
    rotary = _first(body, Rotary)
    if rotary is None:
        return {"model.position_embedding_type": "learned_absolute"}
    share = rotary.width / ((core.heads + core.kv_heads) * core.head_dim)
    return {"model.position_embedding_type": "rope", "model.rotary_percent": round(min(share, 1.0), 6)}


def _norms(body: tuple[Operator, ...], core: Attention, hidden: int) -> Fields:
    norms = [op for op in body if isinstance(op, Norm)]
    heads = any(norm.width == core.head_dim and norm.heads for norm in norms)
    rms = any(norm.kind == "rms" for norm in norms if norm.width == hidden)
    return {"model.normalization": "RMSNorm" if rms else "LayerNorm", "model.qk_layernorm": heads}


def _matrices(body: tuple[Operator, ...], activation: Activation | None, experts: Experts | None) -> Fields:
    matrices = [op for op in body if isinstance(op, Linear)]
    columns = [op for op in matrices if op.split == "column"]
    rows = [op for op in matrices if op.split == "row"]
    bias = any(op.bias for op in rows)
    fields: Fields = {
        "model.add_bias_linear": bias,
        "model.add_qkv_bias": not bias and any(op.bias for op in columns[:1]),
    }
    if experts is not None:
        mixture = {"model.num_experts": experts.count, "model.moe_router_topk": experts.top_k}
        return (
            fields
            | mixture
            | {"model.swiglu": experts.gated, "model.moe_ffn_hidden_size": experts.ffn}
            | {"model.intermediate_size": experts.ffn}
        )
    assert activation is not None
    return fields | {"model.swiglu": activation.gated, "model.intermediate_size": activation.width}
