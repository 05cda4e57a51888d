"""GPT-NeoX: its YAML, whose keys may be written with `-` or `_`.

EleutherAI/gpt-neox `megatron/neox_arguments/neox_args.py` (names and defaults), `megatron/tokenizer/tokenizer.py`
(words are padded to a multiple of 128 times the model-parallel size), `configs/20B.yml`; looked up in 2026-11.
"""

from typing import Any

from meshwright.errors import DocumentError
from meshwright.export.deepspeed import BATCH_KEYS, OPTIMIZER_KEYS, ZERO_KEYS, overlap, with_batch
from meshwright.export.fields import Fields
from meshwright.export.keys import COUNT, REAL, TEXT, TRUTH, WHOLE, Codec, Key, says, words
from meshwright.export.stages import evenly
from meshwright.export.system import Given, System, take, with_replicas

_VOCABULARIES = {"HFTokenizer": 50257, "GPT2BPETokenizer": 50257, "NeoXTokenizer": 50254}
"""Words of the tokenizers that EleutherAI trains with; a tokenizer of one's own wants `--model`."""
KEYS = (
    Key("pipe-parallel-size", "pp", WHOLE, 1),
    Key("model-parallel-size", "tp", COUNT, 1),
    Key("sequence-parallel", "sp", TRUTH, False),
    Key("seq-length", "recipe.sequence"),
    *BATCH_KEYS,
    *ZERO_KEYS,
    *OPTIMIZER_KEYS,
    Key("weight-decay", "decay", REAL),
    Key("fp16.enabled", "recipe.precision.compute", says("fp16"), "fp32", others=("fp16.fp16",)),
    Key("bf16.enabled", "recipe.precision.compute", says("bf16"), "fp32"),
    Key("precision", "recipe.precision.compute", words({"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}), "fp32"),
    Key("fp32-allreduce", "recipe.precision.reduce", says("fp32")),
    Key("checkpoint-activations", "recompute", words({True: "full", False: "none"}), "none"),
    Key("pipe-partition-method", "method_of_cut", TEXT),
    Key("seed", "recipe.seed", WHOLE, 1234),
    Key("num-layers", "model.num_hidden_layers"),
    Key("hidden-size", "model.hidden_size"),
    Key("num-attention-heads", "model.num_attention_heads"),
    Key("intermediate-size", "model.intermediate_size"),
    Key("max-position-embeddings", "model.max_position_embeddings"),
    Key("norm", "model.norm", TEXT, "layernorm"),
    Key("pos-emb", "model.pos_emb", TEXT, "learned"),
    Key("rotary-pct", "model.rotary_pct", REAL, 1.0),
    Key("no-weight-tying", "model.untied", TRUTH, False),
    Key("gpt-j-residual", "model.use_parallel_residual", TRUTH, False),
    Key("hidden-dropout", "model.hidden_dropout", REAL, 0.0),
    Key("attention-dropout", "model.attention_dropout", REAL, 0.0),
    Key("activation", "model.activation", TEXT, "gelu"),
    Key("tokenizer-type", "tokenizer", Codec(str, str), "GPT2BPETokenizer"),
    Key("make-vocab-size-divisible-by", "model.pads_to", COUNT, 128),
)


def neox_config(fields: Fields) -> dict[str, Any] | None:
    """The configuration of a GPT-NeoX; none where sizes are missing. Raises DocumentError for another kind of model."""
    said = {name.removeprefix("model."): value for name, value in fields.items() if name.startswith("model.")}
    if "num_hidden_layers" not in said or "hidden_size" not in said:
        return None
    for name, wanted in {"norm": "layernorm", "pos_emb": "rotary", "activation": "gelu"}.items():
        if said[name] != wanted:
            raise DocumentError(f"neox: {name}: {said[name]} is not known with {wanted} alone; give --model")
    words_ = _VOCABULARIES.get(fields["tokenizer"])
    if words_ is None:
        raise DocumentError(f"neox: how many words a {fields['tokenizer']} has is not known; give --model")
    to = said["pads_to"] * (fields.get("tp") or 1)
    return {
        "model_type": "gpt_neox",
        "hidden_size": said["hidden_size"],
        "num_hidden_layers": said["num_hidden_layers"],
        "num_attention_heads": said["num_attention_heads"],
        "intermediate_size": said.get("intermediate_size", 4 * said["hidden_size"]),
        "rotary_pct": said["rotary_pct"],
        "use_parallel_residual": said["use_parallel_residual"],
        "tie_word_embeddings": not said["untied"],
        "hidden_dropout": said["hidden_dropout"],
        "attention_dropout": said["attention_dropout"],
        "vocab_size": -(-words_ // to) * to,
    }


def finish(fields: Fields, given: Given) -> Fields:
    """Batches that agree, an even cut, what gradients add up in. Raises PlanError."""
    pp = max(1, fields.get("pp") or 1)
    fields = with_batch(with_replicas(take(fields, pp=pp), given))
    compute = fields["recipe.precision.compute"]
    decay = fields.get("decay")
    return take(
        fields,
        layers=evenly(given.layers, pp) if pp > 1 else None,
        overlap=overlap(fields),
        **{
            "recipe.precision.reduce": fields.get("recipe.precision.reduce") or compute,
            "recipe.optimizer.weight_decay": decay if decay is not None else 0.01,
        },
    )


NEOX = System(
    name="neox",
    release="GPT-NeoX 2.0",
    keys=KEYS,
    finish=finish,
    model=neox_config,
    kernels="megatron-deepspeed",
)
