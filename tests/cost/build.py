"""Small plans for the tests of cost, built in one call."""

from typing import Any

from hypothesis import settings

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.model.hf_config import from_config
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe

QUICK = settings(max_examples=60, deadline=None)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 128,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 4,
    "vocab_size": 128,
    "n_positions": 256,
}


def llama(**fields: Any) -> ModelSpec:
    """A small Llama."""
    return from_config(LLAMA | fields)


def gpt2(**fields: Any) -> ModelSpec:
    """A small GPT-2."""
    return from_config(GPT2 | fields)


def inputs(
    model: ModelSpec | str,
    cluster: Cluster | str,
    mesh: dict[str, int],
    roles: dict[str, str],
    *,
    pp: int = 1,
    rows: list[dict[str, Any]] | None = None,
    batch: int = 8,
    sequence: Any = 64,
    micro_batches: int = 1,
    schedule: str = "1f1b",
    recompute: Any = "none",
    offload: dict[str, str] | None = None,
    execution: dict[str, Any] | None = None,
    recipe: dict[str, Any] | None = None,
) -> Inputs:
    """A plan with its inputs. All layers have the same roles; `rows` gives one stage's rows where they differ. With
    `pp` the numbered layers are cut evenly into stages, each on as many devices as the mesh has places.
    """
    spec, machine = resolve_model(model), resolve_cluster(cluster)
    size = 1
    for ways in mesh.values():
        size *= ways
    usual = {"roles": roles, "recompute": recompute, "offload": offload or {}}
    spans = [[usual | {"span": span} for span in stage] for stage in _cut(spec, pp)]
    stages = [[usual | row for row in rows]] if rows else spans
    plan = Plan.from_data(
        {
            "meshwright_plan": 1,
            "model": {"name": spec.name},
            "cluster": {"name": machine.name},
            "recipe": {"global_batch": batch, "sequence": sequence},
            "micro_batches": micro_batches,
            "schedule": schedule,
            "groups": {f"g{stage}": {"devices": _devices(stage, size), "mesh": mesh} for stage in range(pp)},
            "stages": [{"on": f"g{number}", "layers": layers} for number, layers in enumerate(stages)],
            "execution": execution or {},
        }
    )
    asked = {"meshwright_recipe": 1, "global_batch": batch, "sequence": sequence} | (recipe or {})
    return Inputs(plan, spec, machine, Recipe.from_data(asked))


def _devices(stage: int, size: int) -> str:
    return f"{stage * size}-{(stage + 1) * size - 1}"


def _cut(model: ModelSpec, stages: int) -> list[list[str]]:
    """The spans of each stage: runs of equal layers, the numbered ones evenly cut."""
    if stages == 1:
        return [[stack.span for stack in model.stacks]]
    names = [layer.name for layer in model.layers]
    body = [name for name in names if "." in name]
    each = len(body) // stages
    cut = [body[stage * each : (stage + 1) * each if stage + 1 < stages else None] for stage in range(stages)]
    spans = [[f"decoder.{part[0].split('.')[1]}-{part[-1].split('.')[1]}"] for part in cut]
    spans[0].insert(0, "embed")
    spans[-1].append("head")
    return spans
