"""What was taken in, written down: the plan, and beside it the recipe and the model that it is for."""

import os
from pathlib import Path
from typing import Any

from meshwright.document import Document
from meshwright.export.taking import Taken
from meshwright.plan.spec import Plan
from meshwright.units import show_count


def write_taken(taken: Taken, path: str, *, model: str | None, cluster: str, recipe: str | None) -> Plan:
    """Write a plan, `NAME.recipe.yaml` beside it, and `NAME.model.yaml` where the model has no name of its own or file.
    The plan names them, and the file of the cluster. Raises DocumentError.
    """
    target, inputs = Path(path), taken.inputs
    sources = {
        "model": _given(model) if model is not None or taken.named else _beside(target, inputs.model),
        "cluster": _given(cluster),
        "recipe": recipe if recipe is not None else _beside(target, inputs.recipe),
    }
    folder = target.resolve().parent
    references = {
        noun: getattr(inputs.plan, noun).model_copy(update={"source": os.path.relpath(Path(source).resolve(), folder)})
        for noun, source in sources.items()
        if source is not None
    }
    plan = Plan(**{name: getattr(inputs.plan, name) for name in Plan.model_fields} | references)
    plan.write(target)
    return plan


def _given(name: str | None) -> str | None:
    """The path that was given; none for a name."""
    return name if name is not None and Path(name).exists() else None


def _beside(target: Path, document: Document) -> str:
    path = target.with_name(f"{target.stem}.{document.noun}.yaml")
    document.write(path)
    return str(path)


def taken_data(taken: Taken) -> dict[str, Any]:
    """As plain data."""
    plan, model, _, recipe = taken.inputs
    return {
        "plan": plan.as_data(),
        "recipe": recipe.as_data(),
        "model": {"name": model.name, "parameters": model.parameters},
        "left_out": list(taken.left),
        "notes": list(taken.notes),
    }


def taken_facts(taken: Taken, path: str | None) -> list[tuple[str, str]]:
    """The main facts, one value for each name."""
    plan, model, cluster, recipe = taken.inputs
    devices = f"{plan.world_size} of {cluster.size}" if plan.world_size < cluster.size else f"{cluster.size}"
    return [
        *([("plan", path)] if path else []),
        ("model", f"{model.name}, {show_count(model.parameters)} parameters"),
        ("devices", devices),
        ("stages", f"{len(plan.stages)} on {len(plan.groups)} groups"),
        ("batch", f"{recipe.global_batch} samples of {recipe.sequence} positions, {plan.micro_batches} micro-batches"),
    ]
