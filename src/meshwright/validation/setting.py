"""A measured row as model, cluster, recipe and plan."""

import re
from typing import Literal

from meshwright.cluster.spec import Cluster
from meshwright.errors import MeshwrightError
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.spec import Offload, Plan
from meshwright.recipe.spec import Recipe
from meshwright.validation.frameworks import Framework, framework_of
from meshwright.validation.layer_rows import recompute_of, split_rows
from meshwright.validation.machines import cluster_of
from meshwright.validation.models import model_of
from meshwright.validation.recipes import recipe_of
from meshwright.validation.rows import Measured
from meshwright.validation.said import as_run, known_of
from meshwright.validation.stages import layers_of_stages, schedule_of, virtual_of
from meshwright.validation.unusable import Unusable

State = Literal[0, 1, 2, 3]
_STATES: tuple[tuple[str, State], ...] = (
    (r"zero2|grad_op", 2),
    (r"zero3|fsdp|hsdp", 3),
    (r"zero1|distributed optimizer", 1),
)
_SHARDS = (r"over (\d+) ranks", r"shard group (\d+)")
UNSAID_MICRO_BATCH: dict[str, int] = {
    "GPT-1.7B": 16,
    "GPT-3.6B": 16,
    "GPT-7.5B": 16,
    "GPT-18B": 8,
    "GPT-39B": 4,
    "GPT-76B": 2,
    "GPT-145B": 2,
    "GPT-291B": 1,
    "GPT-530B": 1,
    "GPT-1T": 1,
}
"""Of megatron_readme_jan2021: those of the same models in the script of Narayanan 2021's table 1 (megatron_sc21)."""


def setting_of(row: Measured) -> Inputs:
    """Raises Unusable with the reason, where a row says too little or asks for what no plan can say."""
    _check(row)
    row = as_run(row)
    framework = framework_of(row)
    try:
        model, cluster = model_of(row, framework), cluster_of(row)
        recipe = recipe_of(row, framework)
        return Inputs(_plan(row, framework, model, cluster, recipe), model, cluster, recipe)
    except Unusable:
        raise
    except MeshwrightError as error:
        raise Unusable(str(error).splitlines()[0]) from error


def _check(row: Measured) -> None:
    if row.text("duplicate_of"):
        raise Unusable("it repeats another row")
    if row.text("status") not in ("ok", "oom"):
        raise Unusable(f"its status is '{row.text('status')}'")
    if row.grade not in ("A", "B"):
        raise Unusable(f"its grade is {row.grade or 'unknown'}: fields are missing or contradict each other")
    if wrong := next((known for known in known_of(row) if not known.changes), None):
        raise Unusable(wrong.reason)
    for name in ("seq_len", "global_batch"):
        if not row.text(name):
            raise Unusable(f"{name} is not said")


def _plan(row: Measured, framework: Framework, model: ModelSpec, cluster: Cluster, recipe: Recipe) -> Plan:
    pp, virtual = row.count("pp"), virtual_of(row)
    zero, (size, count) = _zero(row), _micro_batches(row)
    plan = uniform_plan(
        model,
        cluster,
        recipe,
        tp=row.count("tp"),
        pp=pp,
        cp=row.count("cp"),
        ep=row.count("ep"),
        etp=_etp(row, framework),
        zero=zero,
        shard=_shard(row) if zero else None,
        recompute=recompute_of(row),
        sp=row.text("sp") == "true" and row.count("tp") > 1,
        virtual=virtual,
        schedule=schedule_of(row, virtual),
        layers_per_stage=layers_of_stages(row, framework, pp * virtual),
        kernels=framework.kernels,
        micro_batch=size,
        micro_batches=count,
    )
    return _refined(plan, row, framework)


def _micro_batches(row: Measured) -> tuple[int | None, int | None]:
    """The size or the count of micro-batches. torchtitan made as many as the pipeline has ranks where nobody said how
    many (pipeline_parallel_microbatches; as many as stages since its pull request 781 of January 2025). Raises
    Unusable.
    """
    if row.text("micro_batch"):
        return row.count("micro_batch"), None
    if row.source == "megatron_readme_jan2021" and (size := UNSAID_MICRO_BATCH.get(row.text("model_name"))):
        return size, None
    if row.source == "torchtitan" and row.count("pp") > 1:
        return None, row.count("pp")
    raise Unusable("micro_batch is not said")


def _etp(row: Measured, framework: Framework) -> int | None:
    """Tensor-parallel ways inside experts; none where there are no experts, or as outside."""
    if not row.text("n_experts"):
        return None
    said = re.search(r"ETP=(\d+)", row.text("notes"))
    return int(said[1]) if said else framework.etp


def _copies(row: Measured) -> int:
    """Ranks that hold equal parameters."""
    return row.count("n_gpus") // (row.count("tp") * row.count("pp"))


def _zero(row: Measured) -> State:
    """FSDP2 in a pipeline keeps parameters gathered from the first micro-batch on (torchtitan, reshard_after_forward),
    as zero2 does; Hagemann 2023, section 3, has ZeRO-1.
    """
    text = "zero1" if row.source == "hagemann2023" else row.text("zero_stage_or_sharding").lower()
    found: State = next((state for pattern, state in _STATES if re.search(pattern, text)), 0)
    if _copies(row) == 1:
        return 0
    return 2 if found == 3 and _resharded_late(row) else found


def _resharded_late(row: Measured) -> bool:
    return row.source == "torchtitan" and row.count("pp") > 1


def _shard(row: Measured) -> int | None:
    """Ranks that shard together; none: all that can."""
    text = row.text("zero_stage_or_sharding")
    said = next((found[1] for pattern in _SHARDS if (found := re.search(pattern, text))), None)
    if maxtext := re.search(r"FSDP dcn=(\d+) x ici=(\d+)", text):
        ranks = int(maxtext[1]) * int(maxtext[2])
    elif said:
        ranks = int(said)
    else:
        ranks = row.count("gpus_per_node", 8) if "HSDP" in text else _copies(row)
    return ranks if ranks < _copies(row) else None


def _refined(plan: Plan, row: Measured, framework: Framework) -> Plan:
    """With what a uniform plan does not say: which layers are recomputed, what is offloaded, what overlaps."""
    away = "CPU offload" in row.text("zero_stage_or_sharding")
    offload = Offload(optimizer="cpu", parameters="cpu") if away else Offload()
    stages = tuple(
        stage.model_copy(update={"layers": tuple(split_rows(stage.layers, row, offload))}) for stage in plan.stages
    )
    changes: dict[str, object] = {"overlap": framework.overlap, "expandable_segments": framework.expandable}
    changes["blocking"] = framework.blocking
    changes |= {"sync": "last"} if _resharded_late(row) else {}
    changes |= {"dispatch": "nodes"} if "DeepEP" in row.text("notes") else {}
    execution = plan.execution.model_copy(update=changes)
    return plan.model_copy(update={"execution": execution, "stages": stages})
