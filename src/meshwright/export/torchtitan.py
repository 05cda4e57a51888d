"""torchtitan: the arguments of its trainer, as of torchtitan 0.3.0; TOML files of earlier releases are read too.

Names and defaults: `config/configs.py` (TrainingConfig, ParallelismConfig), `distributed/activation_checkpoint.py` (a
choice of tyro: `activation_checkpoint:full`), `distributed/pipeline_parallel.py` (the cut into stages, micro-batches),
`distributed/fsdp.py` (resharding), `models/*/config_registry.py`; TOML: `config/job_config.py` of 0.1 and 0.2. Looked
up in 2026-11. Its optimizers are set in Python, not by arguments.
"""

from typing import Any

from meshwright.errors import PlanError
from meshwright.export.fields import Fields
from meshwright.export.keys import COUNT, NOTHING, REAL, SETS, TEXT, TRUTH, WHOLE, Codec, Key, Values, says, words
from meshwright.export.stages import evenly
from meshwright.export.system import Given, System, copies_of, offloaded, take, with_replicas
from meshwright.export.texts import write_flags
from meshwright.export.torchtitan_configs import BY_FLAVOR, BY_NAME, PRESETS
from meshwright.plan.rules import Inputs

_SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "ZBVZeroBubble": "zbv",
    "DualPipeV": "dualpipev",
}
_DTYPES = words({"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"})


def _stages(value: Any) -> tuple[int, ...]:
    if not isinstance(value, str | list):
        raise ValueError("a list of modules for each stage")
    stages = [
        each.split(",") if isinstance(each, str) else each for each in ([value] if isinstance(value, str) else value)
    ]
    if not all(isinstance(stage, list) for stage in stages):
        raise ValueError("a list of modules for each stage")
    return tuple(sum(str(module).startswith("layers.") for module in stage) for stage in stages)


def _modules(counts: tuple[int, ...]) -> list[str]:
    """The modules of each stage, with commas between them, as its arguments have them.

    >>> _modules((1, 1))
    ['tok_embeddings,layers.0', 'layers.1,norm,lm_head']
    """
    first, found = 0, []
    for place, count in enumerate(counts):
        layers = [f"layers.{index}" for index in range(first, first + count)]
        head = ["norm", "lm_head"] if place == len(counts) - 1 else []
        found.append(",".join([*(["tok_embeddings"] if place == 0 else []), *layers, *head]))
        first += count
    return found


_FLOAT8 = Codec(lambda value: "fp8" if "float8" in str(value) else NOTHING, lambda _: NOTHING)
_ON = "--parallelism."
KEYS = (
    Key("--module", "module", TEXT, others=("model.name",)),
    Key("--config", "config", TEXT),
    Key("model.flavor", "flavor", TEXT, old=True),
    Key("model.converters", "recipe.precision.matmul", _FLOAT8, old=True),
    Key("--training.seq_len", "recipe.sequence", always=True),
    Key("--training.local_batch_size", "local_batch", always=True, others=("training.batch_size",)),
    Key("--training.global_batch_size", "recipe.global_batch", always=True),
    Key("--training.max_norm", "recipe.clip_norm", REAL, 1.0),
    Key("--training.dtype", "dtype", _DTYPES, "fp32"),
    Key("--training.mixed_precision_param", "recipe.precision.compute", _DTYPES, "bf16"),
    Key("--training.mixed_precision_reduce", "recipe.precision.reduce", _DTYPES, "fp32"),
    Key("--training.enable_cpu_offload", "offloads", TRUTH, False),
    Key("--training.disable_cuda_graphs", "no_graphs", SETS, False),
    Key(f"{_ON}data_parallel_replicate_degree", "copies", COUNT, 1),
    Key(f"{_ON}data_parallel_shard_degree", "shard_degree", WHOLE, -1),
    Key(f"{_ON}fsdp_reshard_after_forward", "reshard", TEXT, "default"),
    Key(f"{_ON}tensor_parallel_degree", "tp"),
    Key(f"{_ON}enable_sequence_parallel", "sp", TRUTH, True, old=True),
    Key(f"{_ON}no-enable-sequence-parallel", "sp", says(False), True),
    Key(f"{_ON}context_parallel_degree", "cp", COUNT, 1),
    Key(f"{_ON}expert_parallel_degree", "ep"),
    Key(f"{_ON}pipeline_parallel_degree", "pp", COUNT, 1),
    Key(f"{_ON}pipeline_parallel_schedule", "schedule", words(_SCHEDULES)),
    Key(f"{_ON}pipeline_parallel_microbatch_size", "piece"),
    Key(
        f"{_ON}pipeline_parallel_microbatches",
        "pieces",
        old=True,
        others=("experimental.pipeline_parallel_microbatches",),
    ),
    Key(f"{_ON}pipeline_parallel_layers_per_stage", "layers_a_stage"),
    Key(f"{_ON}pipeline_parallel_first_stage_less_layers", "first_less", WHOLE, 1),
    Key(f"{_ON}pipeline_parallel_last_stage_less_layers", "last_less", WHOLE, 1),
    Key(f"{_ON}module_fqns_per_model_part", "layers", Codec(_stages, _modules)),
    Key("--compile.enable", "compiled", SETS, others=("training.compile",)),
    Key("--compile.no-enable", "compiled", says(False)),
    Key("--debug.seed", "recipe.seed", WHOLE),
    Key("optimizer.name", "recipe.optimizer.name", words({"AdamW": "adamw", "Adam": "adamw"}), old=True),
    Key("optimizer.lr", "recipe.optimizer.learning_rate", REAL, old=True),
    Key("optimizer.eps", "recipe.optimizer.epsilon", REAL, old=True),
    Key("optimizer.weight_decay", "recipe.optimizer.weight_decay", REAL, old=True),
    Key("activation_checkpoint.selective_ac_option", "selective", Codec(str, str), "op", old=True),
    Key(
        "activation_checkpoint.mode",
        "recompute",
        words({"full": "full", "selective": "half", "none": "none"}),
        always=True,
    ),
)


def finish(fields: Fields, given: Given) -> Fields:
    """Batches, stages, what FSDP keeps. Raises PlanError for what no plan says."""
    fields = _preset(fields) | fields
    pp, tp, ep = (fields.get(name) or 1 for name in ("pp", "tp", "ep"))
    if fields["recompute"] == "half" and fields["selective"] != "op":
        raise PlanError(
            f"selective_ac_option '{fields['selective']}' recomputes every so many layers whole, which no plan here "
            "does; write 'op'"
        )
    etp = 1 if ep > 1 else tp
    fields = with_replicas(take(fields, zero=_zero(fields, pp), sp=tp > 1 and fields["sp"], etp=etp), given)
    degree = fields["shard_degree"]
    if degree not in (-1, fields["dp"] // fields["copies"]):
        raise PlanError(f"data_parallel_shard_degree {degree} is not what is left of the devices, {fields['dp']}")
    return take(
        _with_stages(_with_batch(fields, pp), given, pp),
        sync="last" if pp > 1 else "each",
        kernels="torch-compile" if fields["compiled"] else "torchtitan",
        **offloaded(fields),
    )


def _preset(fields: Fields) -> Fields:
    """What its configuration says of the model, or its trainer of any."""
    name = BY_NAME.get(str(fields.get("config")))
    if name is not None:
        return PRESETS[name].fields()
    return {"recipe.sequence": 2048, "recompute": "half", "schedule": "1f1b", "compiled": False}


def _zero(fields: Fields, pp: int) -> int:
    """In pipelines parameters stay gathered from the first micro-batch to the last, unless each forward gives them
    back.
    """
    if fields["reshard"] == "never" and pp == 1:
        raise PlanError(
            "fsdp_reshard_after_forward never gathers parameters once a micro-batch, which no state of a plan does; "
            "write 'always' or 'default'"
        )
    return 2 if pp > 1 and fields["reshard"] != "always" else 3


def _with_batch(fields: Fields, pp: int) -> Fields:
    local = fields.get("local_batch") or 8
    batch = fields.get("recipe.global_batch") or -1
    batch = local * fields["dp"] if batch < 0 else batch
    if batch % (local * fields["dp"]):
        raise PlanError(f"local_batch_size {local} x dp {fields['dp']} does not divide a global batch of {batch}")
    pieces = fields.get("pieces")
    samples = local if pp == 1 else fields.get("piece") or (max(1, local // pieces) if pieces else 1)
    if local % samples:
        raise PlanError(f"pipeline_parallel_microbatch_size {samples} does not divide local_batch_size {local}")
    return take(fields, samples=samples, **{"recipe.global_batch": batch})


def _with_stages(fields: Fields, given: Given, pp: int) -> Fields:
    if pp == 1:
        return take(fields, layers=None, schedule="1f1b")
    counts, schedule = fields.get("layers"), fields["schedule"]
    if counts is None:
        first, last, each = fields["first_less"], fields["last_less"], fields.get("layers_a_stage")
        stages = -(-(given.layers + first + last) // each) if each else _stage_count(pp, schedule)
        counts = evenly(given.layers, stages, first, last)
    if len(counts) % pp:
        raise PlanError(f"{len(counts)} stages do not divide over {pp} pipeline ranks")
    virtual = len(counts) // pp
    return take(fields, layers=counts, virtual=virtual if schedule == "interleaved" else None)


def prepare(fields: Fields, inputs: Inputs) -> Fields:
    """What its arguments say of a plan's fields."""
    pp, counts, copies = fields["pp"], fields["layers"], copies_of(fields)
    dp, samples, batch = fields["dp"], fields["samples"], fields["recipe.global_batch"]
    usual = pp == 1 or counts == _usual(fields, sum(counts))
    preset = PRESETS.get(inputs.model.name)
    named = preset is not None and preset.name is not None
    compiled = fields["kernels"] == "torch-compile"
    plain = not fields["zero"]
    said = {
        "module": preset.module if preset is not None and named else NOTHING,
        "config": preset.name if preset is not None and named else NOTHING,
        "local_batch": batch // dp if pp > 1 else samples,
        "piece": samples if pp > 1 else NOTHING,
        "copies": dp if plain else copies,
        "shard_degree": 1 if plain else dp // copies,
        "reshard": "always" if pp > 1 and fields["zero"] == 3 else "default",
        "layers": NOTHING if usual else counts,
        "sp": fields["sp"] or fields["tp"] == 1,
        "compiled": NOTHING if compiled == (preset is not None and preset.compiled) else compiled,
        "schedule": fields["schedule"] if pp > 1 else NOTHING,
        "offloads": fields["offload.parameters"] and fields["offload.optimizer"],
        "no_graphs": pp > 1 or fields["ep"] > 1,  # it refuses them there: trainer.py, _validate_cuda_graphs
        "first_less": 1,
        "last_less": 1,
    }
    return fields | said


def _stage_count(pp: int, schedule: str) -> int:
    """How many stages it makes, where nothing is said."""
    return pp * (2 if schedule in ("interleaved", "zbv", "dualpipev") else 1)


def _usual(fields: Fields, layers: int) -> tuple[int, ...] | None:
    """Its own cut, where nothing is said."""
    try:
        return evenly(layers, _stage_count(fields["pp"], fields["schedule"]), 1, 1)
    except PlanError:
        return None


def _model(fields: Fields) -> str | None:
    if fields.get("config") is not None:
        return BY_NAME.get(fields["config"])
    return BY_FLAVOR.get((str(fields.get("module")), str(fields.get("flavor"))))


def _files(values: Values) -> dict[str, str]:
    mode = values.pop("activation_checkpoint.mode", None)
    return {"torchtitan.args": write_flags(values) + (f"activation_checkpoint:{mode}\n" if mode else "")}


def _notes(inputs: Inputs) -> list[str]:
    notes = ["start with: torchrun ... -m torchtitan.train $(cat FILE); its optimizer is set in Python"]
    preset = PRESETS.get(inputs.model.name)
    if preset is None or preset.name is None:
        notes.append("give --module and --config of your own: no configuration of this model is known")
    return notes


TORCHTITAN = System(
    name="torchtitan",
    release="torchtitan 0.3.0",
    keys=KEYS,
    files=_files,
    finish=finish,
    prepare=prepare,
    model=_model,
    notes=_notes,
    kernels="torchtitan",
)
