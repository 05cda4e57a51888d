"""Megatron-LM: the arguments of its training script, as of megatron-core 0.16.1.

Names and defaults: NVIDIA/Megatron-LM `megatron/training/arguments.py`, and the dataclasses that it makes arguments
from (`transformer_config.py`, `model_parallel_config.py`), looked up in 2026-11. `--checkpoint-activations`,
`--recompute-activations` and the like are older words. `a2a+p2p` sends a part all to all and the rest around a ring.
"""

from meshwright.errors import PlanError
from meshwright.export.fields import Fields, parallel
from meshwright.export.keys import COUNT, NOTHING, REAL, SETS, TEXT, WHOLE, Codec, Key, Values, says, words
from meshwright.export.megatron_model import MODEL_KEYS, megatron_config, megatron_fields
from meshwright.export.stages import ends_apart, evenly, read_layout, write_layout
from meshwright.export.system import Given, System, copies_of, take, with_replicas
from meshwright.export.texts import write_flags
from meshwright.plan.rules import Inputs

_SEVERAL = Codec(
    lambda value: tuple(WHOLE.read(each) for each in (value if isinstance(value, list) else [value])), list
)
_LAYOUT = Codec(lambda value: read_layout(TEXT.read(value)), write_layout)
BATCH_KEYS = (
    Key("--micro-batch-size", "samples", always=True),
    Key("--global-batch-size", "recipe.global_batch", always=True),
    Key("--seq-length", "recipe.sequence", always=True),
)
OPTIMIZER_KEYS = (
    Key("--optimizer", "recipe.optimizer.name", words({"adam": "adamw", "sgd": "sgd", "muon": "muon"}), "adamw"),
    Key("--lr", "recipe.optimizer.learning_rate", REAL),
    Key("--adam-beta1", "beta1", REAL, 0.9),
    Key("--adam-beta2", "beta2", REAL, 0.999),
    Key("--adam-eps", "recipe.optimizer.epsilon", REAL, 1e-8),
    Key("--weight-decay", "recipe.optimizer.weight_decay", REAL, 0.01),
    Key("--sgd-momentum", "momentum", REAL, 0.9),
    Key("--clip-grad", "recipe.clip_norm", REAL, 1.0),
    Key("--seed", "recipe.seed", WHOLE, 1234),
)
PRECISION_KEYS = (
    Key("--bf16", "recipe.precision.compute", says("bf16"), "fp32"),
    Key("--fp16", "recipe.precision.compute", says("fp16"), "fp32"),
    Key("--fp8-format", "recipe.precision.matmul", words({"hybrid": "fp8", "e4m3": "fp8"})),
    Key("--accumulate-allreduce-grads-in-fp32", "recipe.precision.reduce", says("fp32")),
    Key("--grad-reduce-in-bf16", "recipe.precision.reduce", says("bf16")),
)
RECOMPUTE_KEYS = (
    Key("--recompute-granularity", "recompute", words({"full": "full", "selective": "selective"}), "none"),
    Key("--recompute-method", "method", TEXT),
    Key("--recompute-num-layers", "method_layers"),
    Key("--checkpoint-activations", "recompute", says("full"), "none", old=True),
    Key("--recompute-activations", "recompute", says("selective"), "none", old=True),
)
_PLAN_KEYS = (
    Key("--tensor-model-parallel-size", "tp", COUNT, 1),
    Key("--sequence-parallel", "sp", SETS, False),
    Key("--pipeline-model-parallel-size", "pp", COUNT, 1),
    Key("--num-virtual-stages-per-pipeline-rank", "virtual"),
    Key("--num-layers-per-virtual-pipeline-stage", "layers_a_stage"),
    Key("--pipeline-model-parallel-layout", "layers", _LAYOUT),
    Key("--decoder-first-pipeline-num-layers", "first_layers", WHOLE),
    Key("--decoder-last-pipeline-num-layers", "last_layers", WHOLE),
    Key("--context-parallel-size", "context", COUNT, 1),
    Key("--cp-comm-type", "context_by", words({"p2p": "ring", "a2a": "ulysses", "a2a+p2p": "both"}), "ring"),
    Key("--hierarchical-context-parallel-sizes", "context_sizes", _SEVERAL),
    Key("--expert-model-parallel-size", "ep", COUNT, 1),
    Key("--expert-tensor-parallel-size", "etp"),
    Key("--use-distributed-optimizer", "zero", says(1), 0),
    Key("--num-distributed-optimizer-instances", "copies", COUNT, 1),
    Key("--optimizer-cpu-offload", "offload.optimizer", SETS, False),
    Key("--use-tp-pp-dp-mapping", "rank_order", says("megatron-pp-dp"), "megatron"),
    Key("--overlap-grad-reduce", "overlaps.gradients", SETS, False),
    Key("--overlap-param-gather", "overlaps.gathers", SETS, False),
    Key("--tp-comm-overlap", "overlaps.tensor", SETS, False),
)


def finish(fields: Fields, given: Given) -> Fields:
    """What several arguments say together. Raises PlanError where they contradict each other."""
    fields = with_replicas(_context(fields), given)
    return take(with_recipe(with_recompute(_with_stages(fields, given), given)), overlap=_overlap(fields))


def _context(fields: Fields) -> Fields:
    ways, by = fields.get("context") or 1, fields.get("context_by")
    if by != "both":
        return take(fields, ulysses=ways if by == "ulysses" else 1, cp=ways if by != "ulysses" else 1)
    inside, *others = fields.get("context_sizes") or (ways,)
    if inside * (others[0] if others else 1) != ways:
        raise PlanError(f"--hierarchical-context-parallel-sizes does not make --context-parallel-size {ways}")
    return take(fields, ulysses=inside, cp=ways // inside)


def _with_stages(fields: Fields, given: Given) -> Fields:
    pp, counts, virtual = fields.get("pp") or 1, fields.get("layers"), fields.get("virtual") or 1
    first, last, each = (fields.get(name) for name in ("first_layers", "last_layers", "layers_a_stage"))
    if each is not None:
        virtual = max(1, given.layers // (pp * each))
        if pp * each * virtual != given.layers:
            raise PlanError(
                f"--num-layers-per-virtual-pipeline-stage {each}: {given.layers} layers do not divide over {pp} ranks"
            )
    if counts is not None:
        virtual = max(1, len(counts) // pp)
    elif first is not None or last is not None:
        counts = ends_apart(given.layers, pp * virtual, first, last)
    elif given.layers % (pp * virtual):
        raise PlanError(f"{given.layers} layers do not divide over {pp * virtual} stages; give a pipeline layout")
    schedule = "interleaved" if virtual > 1 else "1f1b"
    return take(fields, pp=pp, virtual=virtual, schedule=schedule) | {"layers": counts}


def with_recompute(fields: Fields, given: Given) -> Fields:
    """`recompute` with its block: the first so many layers of each stage."""
    count = fields.get("method_layers")
    if fields.get("recompute") != "full" or fields.get("method") != "block" or count is None:
        return fields
    stages = parallel(fields, "pp", "virtual")
    whole = count >= max(fields.get("layers") or evenly(given.layers, stages))
    return fields if whole else take(fields, block=count, recompute="none")


def with_recipe(fields: Fields) -> Fields:
    """The recipe's part: two betas, what gradients add up in, master weights."""
    compute = fields.get("recipe.precision.compute")
    adam = fields.get("recipe.optimizer.name") == "adamw"
    return take(
        fields,
        **{
            "recipe.optimizer.betas": [fields.get("beta1", 0.9), fields.get("beta2", 0.999)],
            "recipe.optimizer.momentum": 0.0 if adam else fields.get("momentum"),
            "recipe.precision.reduce": fields.get("recipe.precision.reduce")
            or ("fp32" if compute == "bf16" else compute),
        },
    )


def _overlap(fields: Fields) -> tuple[str, ...]:
    names = ("gathers", "gradients", "context", "tensor")
    return tuple(name for name in names if name == "context" or fields.get(f"overlaps.{name}"))


def prepare(fields: Fields, inputs: Inputs) -> Fields:
    """What its arguments say of a plan's fields."""
    ulysses, cp = fields.get("ulysses", 1), fields.get("cp", 1)
    by = "both" if ulysses > 1 and cp > 1 else "ulysses" if ulysses > 1 else "ring"
    said = take(
        fields,
        context=ulysses * cp,
        context_by=by,
        context_sizes=(ulysses, cp) if by == "both" else None,
        copies=copies_of(fields),
        etp=fields["etp"] if fields["etp"] != fields["tp"] else None,
    )
    said |= {f"overlaps.{name}": name in fields["overlap"] for name in ("gathers", "gradients", "tensor")}
    said["overlaps.gathers"] &= fields["zero"] == 1
    said["overlaps.tensor"] &= fields["sp"]
    return said | _stages(fields) | recompute_said(fields) | recipe_said(fields) | megatron_fields(inputs)


def _stages(fields: Fields) -> Fields:
    counts, virtual = fields["layers"], fields["virtual"]
    even = len(set(counts)) == 1
    return {"layers": NOTHING if even else counts, "virtual": virtual if even and virtual > 1 else NOTHING}


def recompute_said(fields: Fields) -> Fields:
    """Full recompute goes layer by layer, which it is asked for by a method and a number."""
    block = fields.get("block")
    if block is not None:
        return {"recompute": "full", "method": "block", "method_layers": block}
    return {"method": "uniform", "method_layers": 1} if fields["recompute"] == "full" else {}


def recipe_said(fields: Fields) -> Fields:
    """The recipe's part in its own arguments."""
    compute, reduce = fields["recipe.precision.compute"], fields["recipe.precision.reduce"]
    betas = fields["recipe.optimizer.betas"]
    usual = reduce == ("fp32" if compute == "bf16" else compute)
    return {
        "beta1": betas[0],
        "beta2": betas[1],
        "momentum": fields["recipe.optimizer.momentum"] if fields["recipe.optimizer.name"] == "sgd" else NOTHING,
        "recipe.precision.reduce": NOTHING if usual else reduce,
    }


def _files(values: Values) -> dict[str, str]:
    return {"megatron.args": write_flags(values)}


def _notes(inputs: Inputs) -> list[str]:
    return [
        f"start {inputs.plan.world_size} processes with: torchrun ... pretrain_gpt.py $(cat FILE), and data, tokenizer "
        "and schedule of the learning rate of your own"
    ]


MEGATRON = System(
    name="megatron",
    release="megatron-core 0.16.1",
    keys=(*_PLAN_KEYS, *BATCH_KEYS, *RECOMPUTE_KEYS, *PRECISION_KEYS, *OPTIMIZER_KEYS, *MODEL_KEYS),
    files=_files,
    finish=finish,
    prepare=prepare,
    model=megatron_config,
    notes=_notes,
    kernels="megatron-flash",
)
