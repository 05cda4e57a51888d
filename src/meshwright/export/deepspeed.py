"""DeepSpeed: its JSON, as of deepspeed 0.19.

Names and defaults: `runtime/config.py`, `runtime/constants.py`, and `config.py` of `runtime/zero`,
`runtime/tensor_parallel` and `runtime/activation_checkpointing`, looked up in 2026-11. Three keys say batch,
micro-batch and accumulation; any two say the third. What is checkpointed, and how a pipeline is
cut, stands in the model's own code.
"""

from meshwright.errors import PlanError
from meshwright.export.fields import Fields
from meshwright.export.keys import COUNT, NOTHING, REAL, TRUTH, WHOLE, Codec, Key, Values, says, words
from meshwright.export.stages import evenly
from meshwright.export.system import Given, System, take, with_replicas
from meshwright.export.texts import write_json
from meshwright.plan.rules import Inputs

_BETAS = Codec(lambda value: [REAL.read(each) for each in value], list)
_PRESENT = Codec(lambda _: "full", lambda word: False if word == "full" else NOTHING)
"""A section that is there configures checkpointing, whatever it says."""
CPU = words({"cpu": True, "none": False, None: False})
DTYPES = words({"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", None: None})
OPTIMIZERS = words(
    {"AdamW": "adamw", "Adam": "adamw", "SGD": "sgd", "Lion": "lion", "Muon": "muon", "adam": "adamw", "sgd": "sgd"}
)
BATCH_KEYS = (
    Key("train_batch_size", "recipe.global_batch", always=True),
    Key("train_micro_batch_size_per_gpu", "samples", always=True),
    Key("gradient_accumulation_steps", "micro_batches", always=True),
)
PRECISION_KEYS = (
    Key("bf16.enabled", "recipe.precision.compute", says("bf16"), "fp32", others=("bfloat16.enabled",)),
    Key("fp16.enabled", "recipe.precision.compute", says("fp16"), "fp32"),
    Key("data_types.grad_accum_dtype", "recipe.precision.reduce", DTYPES),
)
OPTIMIZER_KEYS = (
    Key("gradient_clipping", "recipe.clip_norm", REAL, 0.0),
    Key("optimizer.type", "recipe.optimizer.name", OPTIMIZERS),
    Key("optimizer.params.lr", "recipe.optimizer.learning_rate", REAL),
    Key("optimizer.params.betas", "recipe.optimizer.betas", _BETAS),
    Key("optimizer.params.eps", "recipe.optimizer.epsilon", REAL),
    Key("optimizer.params.weight_decay", "recipe.optimizer.weight_decay", REAL),
    Key("optimizer.params.momentum", "recipe.optimizer.momentum", REAL),
)
ZERO_KEYS = (
    Key("zero_optimization.stage", "zero", WHOLE, 0),
    Key("zero_optimization.offload_optimizer.device", "offload.optimizer", CPU, False),
    Key("zero_optimization.offload_param.device", "offload.parameters", CPU, False),
    Key("zero_optimization.overlap_comm", "overlaps", TRUTH),
)
CHECKPOINT_KEYS = (
    Key("activation_checkpointing.partition_activations", "recompute", _PRESENT, "none"),
    *(
        Key(f"activation_checkpointing.{name}", "recompute", _PRESENT, "none", old=True)
        for name in (
            "cpu_checkpointing",
            "contiguous_memory_optimization",
            "number_checkpoints",
            "synchronize_checkpoint_boundary",
            "profile",
        )
    ),
)
_PLAN_KEYS = (
    Key("tensor_parallel.autotp_size", "tp", WHOLE, 1),
    Key("sequence_parallel_size", "ulysses", COUNT, 1),
    Key("pipeline.stages", "pp", COUNT, 1),
)


def finish(fields: Fields, given: Given) -> Fields:
    """Batch sizes that agree, what overlaps, an even cut. Raises PlanError."""
    fields = with_replicas(fields, given)
    pp = fields.get("pp") or 1
    return take(
        with_batch(fields),
        layers=evenly(given.layers, pp) if pp > 1 else None,
        overlap=overlap(fields),
        **{"recipe.precision.reduce": reduced_in(fields)},
    )


def reduced_in(fields: Fields) -> str:
    """The dtype in which gradients add up: that of computing where nothing is said, but fp32 for bf16 without ZeRO
    (`runtime/engine.py`, `get_data_types`).
    """
    compute = fields["recipe.precision.compute"]
    usual = "fp32" if compute == "bf16" and not fields.get("zero") else compute
    return str(fields.get("recipe.precision.reduce") or usual)


def with_batch(fields: Fields) -> Fields:
    """The batch of a step, of a micro-batch on a rank, and their number: any two say the third."""
    dp = fields["dp"]
    batch, samples, count = (fields.get(name) for name in ("recipe.global_batch", "samples", "micro_batches"))
    if batch is None and samples is not None:
        batch = samples * (count or 1) * dp
    if batch is not None and samples is None:
        samples = max(1, batch // (count or 1) // dp)
    if batch is not None and samples is not None:
        count = max(1, batch // samples // dp) if count is None else count
        if samples * count * dp != batch:
            product = f"micro-batches of {samples} x {count} x dp {dp} = {samples * count * dp}"
            raise PlanError(f"a batch of {batch} contradicts {product}; leave one of the three out")
    return take(fields, **{"recipe.global_batch": batch, "samples": samples, "micro_batches": count})


def overlap(fields: Fields) -> tuple[str, ...]:
    """What runs beside computing: `overlap_comm` is on for ZeRO-3 where nothing is said."""
    asked = fields.get("overlaps")
    return (
        ("gathers", "gradients", "context") if (fields.get("zero") == 3 if asked is None else asked) else ("context",)
    )


def prepare(fields: Fields, inputs: Inputs) -> Fields:
    """What the JSON says of a plan's fields."""
    adam = fields["recipe.optimizer.name"] not in ("sgd", "muon")
    return fields | {
        "overlaps": "gradients" in fields["overlap"],
        "recipe.optimizer.momentum": NOTHING if adam else fields["recipe.optimizer.momentum"],
        "recipe.optimizer.betas": fields["recipe.optimizer.betas"] if adam else NOTHING,
        "recipe.optimizer.epsilon": fields["recipe.optimizer.epsilon"] if adam else NOTHING,
    }


def _files(values: Values) -> dict[str, str]:
    return {"ds_config.json": write_json(values)}


def _notes(inputs: Inputs) -> list[str]:
    rows = [row for stage in inputs.plan.stages for row in stage.layers]
    notes = []
    if any(row.recompute != "none" for row in rows):
        notes.append("checkpointing is switched on in the model's code: model.gradient_checkpointing_enable()")
    if len(inputs.plan.groups) > 1:
        notes.append(
            "a pipeline is a PipelineModule in the model's code, with num_stages and partition_method 'uniform'"
        )
    if any("ulysses" in str(role) for row in rows for role in row.roles.values()):
        notes.append("ulysses wants DistributedAttention, or UlyssesSPAttentionHF, in the model's code")
    return notes


DEEPSPEED = System(
    name="deepspeed",
    release="deepspeed 0.19",
    keys=(*BATCH_KEYS, *_PLAN_KEYS, *ZERO_KEYS, *CHECKPOINT_KEYS, *PRECISION_KEYS, *OPTIMIZER_KEYS),
    files=_files,
    finish=finish,
    prepare=prepare,
    notes=_notes,
    kernels="hf-sdpa",
)
