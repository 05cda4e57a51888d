"""A plan with the model, cluster and recipe that it is for, found by the names that it gives."""

from pathlib import Path
from typing import Any

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.errors import DocumentError
from meshwright.model.resolve import resolve_model
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from meshwright.recipe.resolve import resolve_recipe
from meshwright.recipe.spec import Recipe


def read_inputs(
    plan: Plan | str | Path,
    *,
    model: Any = None,
    cluster: str | Path | Cluster | None = None,
    recipe: str | Path | Recipe | dict[str, Any] | None = None,
    folder: str | Path | None = None,
) -> Inputs:
    """A plan or its file, and what it is for: what is given here, or else what the plan names.

    The files that a plan names lie relative to its own folder; `folder` says which that is for a Plan (else the
    current one). Raises UnknownNameError or DocumentError where a name leads nowhere.
    """
    if not isinstance(plan, Plan | str | Path):
        raise DocumentError(f"a {type(plan).__name__} is no plan: give a Plan or the path of one")
    if not isinstance(plan, Plan):
        folder = Path(plan).parent if folder is None else folder
        plan = Plan.read(plan)
    beside = Path(folder or ".")
    return Inputs(
        plan,
        resolve_model(_named(plan.model.source, plan.model.name, beside) if model is None else model),
        resolve_cluster(_named(plan.cluster.source, plan.cluster.name, beside) if cluster is None else cluster),
        _recipe_of(plan, beside) if recipe is None else resolve_recipe(recipe),
    )


def _named(source: str | None, name: str, folder: Path) -> str:
    return str(folder / source) if source else name


def _recipe_of(plan: Plan, folder: Path) -> Recipe:
    if plan.recipe.source:
        return Recipe.read(folder / plan.recipe.source)
    usual = Recipe(global_batch=plan.recipe.global_batch, sequence=plan.recipe.sequence)
    if plan.recipe.fingerprint not in (None, usual.fingerprint):
        raise DocumentError(
            f"the plan was made for a recipe of its own (fingerprint {plan.recipe.fingerprint}), which it does not "
            "carry: give the recipe, or name its file in the plan's recipe.source"
        )
    return usual
