"""What a programmer types: `import meshwright as mw`, then these. The command line calls the same functions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.errors import DocumentError
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.resolve import plan_inputs, read_plan
from meshwright.plan.rules import Inputs, Problem, Scope, check_plan
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe

if TYPE_CHECKING:
    from torch import nn

    from meshwright.cost.estimate import Estimate
    from meshwright.runtime.parallel_model import ParallelModel


def model(what: Any) -> ModelSpec:
    """A model from its name, a ModelSpec file, a `config.json` or its folder, or a configuration object.

    Raises UnknownNameError, DocumentError.
    """
    return resolve_model(what)


def cluster(what: str | Path | Cluster) -> Cluster:
    """A cluster from its shorthand (`4x8xh100`, `cpu:4`) or file. Raises UnknownNameError, DocumentError."""
    return resolve_cluster(what)


def recipe(what: str | Path | Recipe | dict[str, Any] | None = None, **fields: Any) -> Recipe:
    """A recipe from its file, or from its fields: `recipe(global_batch=512, sequence=8192)`. Raises DocumentError."""
    if isinstance(what, Recipe):
        return what
    if isinstance(what, str | Path):
        return Recipe.read(what)
    return Recipe.from_data({"meshwright_recipe": 1} | (what or {}) | fields, "recipe")


def uniform_plan(model: Any, cluster: str | Path | Cluster, recipe: Recipe | str | Path, **degrees: Any) -> Plan:
    """A plan in which all layers have the same roles: `uniform_plan("llama-3.1-8b", "8xh100", recipe, tp=2, zero=1)`.

    `degrees` are those of `meshwright.plan.shorthand.uniform_plan`. Raises PlanError with the nearest that works.
    """
    from meshwright.plan.shorthand import uniform_plan as make

    asked = recipe if isinstance(recipe, Recipe) else Recipe.read(recipe)
    return make(resolve_model(model), resolve_cluster(cluster), asked, **degrees)


def check(plan: Plan | str | Path, *, scope: Scope = "meaning", **inputs: Any) -> list[Problem]:
    """What is wrong with a plan by the rules of a scope; empty where nothing is.

    `inputs` are `model`, `cluster` and `recipe`, where they are not the ones that the plan names. Whether it fits in
    memory is `estimate`'s matter. Raises UnknownNameError, DocumentError.
    """
    return check_plan(_inputs(plan, inputs), scope)


def estimate(plan: Plan | str | Path, **inputs: Any) -> "Estimate":
    """The predicted time and memory of a plan. Raises PlanError where it has no meaning."""
    from meshwright.cost.estimate import estimate_plan

    return estimate_plan(_inputs(plan, inputs))


def parallelize(module: "nn.Module", plan: Plan | str | Path, **inputs: Any) -> "ParallelModel":
    """Make a module train under a plan, on the process group of torch.distributed. Needs the extra `train`.

    `module` holds the whole model, equal on every rank, and is changed in place: afterwards it holds this rank's part.
    `inputs` are `model` (else `module.config` says what it is, else the plan), `cluster` and `recipe`. Raises PlanError
    where the runtime cannot run the plan, or the module is not the plan's model.
    """
    from meshwright.runtime.parallelize import parallelize as apply

    known = getattr(module, "config", None)
    return apply(module, _inputs(plan, ({"model": known} if known is not None else {}) | inputs))


def _inputs(plan: Plan | str | Path, given: dict[str, Any]) -> Inputs:
    if isinstance(plan, Plan):
        return plan_inputs(plan, **given)
    if not isinstance(plan, str | Path):
        raise DocumentError(f"a {type(plan).__name__} is no plan: give a Plan or the path of one")
    return plan_inputs(read_plan(plan), folder=Path(plan).parent, **given)
