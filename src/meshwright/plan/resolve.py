"""The model, cluster and recipe that a plan is for, found by the names that it gives."""

from pathlib import Path
from typing import Any

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.errors import DocumentError
from meshwright.model.resolve import resolve_model
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe


def plan_inputs(
    plan: Plan,
    *,
    model: Any = None,
    cluster: "str | Path | Cluster | None" = None,
    recipe: "str | Path | Recipe | None" = None,
    folder: "str | Path" = ".",
) -> Inputs:
    """What the plan is for: what is given here, or else what the plan names; its files lie relative to `folder`.

    Raises UnknownNameError or DocumentError where a name leads nowhere.
    """
    return Inputs(
        plan,
        resolve_model(model if model is not None else _named(plan.model.source, plan.model.name, folder)),
        resolve_cluster(cluster if cluster is not None else _named(plan.cluster.source, plan.cluster.name, folder)),
        _recipe(plan, recipe, folder),
    )


def _named(source: str | None, name: str, folder: "str | Path") -> str:
    return str(Path(folder) / source) if source else name


def _recipe(plan: Plan, recipe: "str | Path | Recipe | None", folder: "str | Path") -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe is not None:
        return Recipe.read(recipe)
    if plan.recipe.source:
        return Recipe.read(Path(folder) / plan.recipe.source)
    usual = Recipe(global_batch=plan.recipe.global_batch, sequence=plan.recipe.sequence)
    if plan.recipe.fingerprint not in (None, usual.fingerprint):
        raise DocumentError(
            f"the plan was made for a recipe of its own (fingerprint {plan.recipe.fingerprint}), which it does not "
            "carry: give the recipe, or name its file in the plan's recipe.source"
        )
    return usual


def read_plan(path: "str | Path") -> Plan:
    """A plan from its file. Raises DocumentError."""
    try:
        return Plan.read(path)
    except RecursionError:
        raise DocumentError(f"{path}: nested too deeply") from None
