"""Megatron-DeepSpeed: Megatron-LM's older arguments beside DeepSpeed's JSON, as BigScience and Microsoft train with it.

bigscience-workshop/Megatron-DeepSpeed `megatron/arguments.py`, `megatron/model/gpt_model.py` (layers that a pipeline
cuts) and DeepSpeed `runtime/pipe/module.py` (`type:` methods count the layers whose class names match), looked up in
2026-11. With bf16, stage 0 shards optimizer states all the same: DeepSpeed's BF16_Optimizer
(`train/tr11-176B-ml/tr11-176B-ml.slurm`).
"""

from meshwright.errors import PlanError
from meshwright.export.deepspeed import BATCH_KEYS as JSON_BATCH_KEYS
from meshwright.export.deepspeed import CHECKPOINT_KEYS, ZERO_KEYS, overlap, with_batch
from meshwright.export.deepspeed import OPTIMIZER_KEYS as JSON_OPTIMIZER_KEYS
from meshwright.export.deepspeed import PRECISION_KEYS as JSON_PRECISION_KEYS
from meshwright.export.fields import Fields
from meshwright.export.keys import COUNT, SETS, TEXT, WHOLE, Key, says
from meshwright.export.megatron import BATCH_KEYS, OPTIMIZER_KEYS, PRECISION_KEYS, RECOMPUTE_KEYS, with_recipe
from meshwright.export.megatron_model import MODEL_KEYS, megatron_config
from meshwright.export.stages import evenly
from meshwright.export.system import Given, System, take, with_replicas

_SHARED = tuple(
    Key(key.name, key.field, key.codec, others=key.others)
    for key in (*ZERO_KEYS, *JSON_PRECISION_KEYS, *JSON_OPTIMIZER_KEYS)
)
"""Keys of the JSON without their defaults: the arguments have their own."""
_PLAN_KEYS = (
    Key("--tensor-model-parallel-size", "tp", COUNT, 1),
    Key("--sequence-parallel", "sp", SETS, False),
    Key("--pipeline-model-parallel-size", "pp", COUNT, 1),
    Key("--ds-sequence-parallel-size", "ulysses", COUNT, 1),
    Key("--zero-stage", "zero", WHOLE),
    Key("--pp-partition-method", "method_of_cut", TEXT),
    Key("--no-pipeline-parallel", "pipeline", says("none")),
    Key("--checkpoint-num-layers", "method_layers"),
)


def finish(fields: Fields, given: Given) -> Fields:
    """Stages by the method of their cut, DeepSpeed's optimizer for bf16, batches that agree. Raises PlanError."""
    pp = 1 if fields.get("pipeline") == "none" else fields.get("pp") or 1
    zero = fields.get("zero") or 0
    if fields["recipe.precision.compute"] == "bf16" and zero == 0:
        zero = 1
    fields = with_batch(with_replicas(take(fields, pp=pp, zero=zero), given))
    betas = fields.get("recipe.optimizer.betas")
    fields = with_recipe(fields) | ({"recipe.optimizer.betas": betas} if betas else {})
    return take(fields, layers=_cut(fields, given, pp) if pp > 1 else None, overlap=overlap(fields))


def _cut(fields: Fields, given: Given, pp: int) -> tuple[int, ...]:
    """How many layers each stage takes. A method that counts parameters, or all modules, is not known here."""
    method = (fields.get("method_of_cut") or "type:transformer").strip("'\"").lower()
    kinds = set(method.removeprefix("type:").split("|")) if method.startswith("type:") else {method}
    if not kinds <= {"transformer", "embedding", "mlp"}:
        raise PlanError(f"--pp-partition-method {method}: known are type:transformer and type:transformer|embedding")
    ends = 1 if "embedding" in kinds else 0
    return evenly(given.layers, pp, ends, ends)


MEGATRON_DEEPSPEED = System(
    name="megatron-deepspeed",
    release="Megatron-DeepSpeed of 2022",
    keys=(
        *_PLAN_KEYS,
        *BATCH_KEYS,
        *JSON_BATCH_KEYS,
        *RECOMPUTE_KEYS[:2],
        *RECOMPUTE_KEYS[3:],
        *CHECKPOINT_KEYS,
        *PRECISION_KEYS,
        *OPTIMIZER_KEYS,
        *MODEL_KEYS,
        *_SHARED,
    ),
    finish=finish,
    model=megatron_config,
    kernels="megatron-deepspeed",
    refers=("--deepspeed_config",),
)
