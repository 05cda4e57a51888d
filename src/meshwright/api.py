"""What a programmer types: `import meshwright as mw`, then these. The command line calls the same functions."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.model.spec import ModelSpec
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rules import Problem, Scope, check_plan
from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.spec import Plan
from meshwright.recipe.resolve import resolve_recipe
from meshwright.recipe.spec import Recipe
from meshwright.trace.target import find_model

if TYPE_CHECKING:
    from torch import nn

    from meshwright.cost.calibration import Calibration
    from meshwright.cost.estimate import Estimate
    from meshwright.export.handing import Handover
    from meshwright.export.taking import Taken
    from meshwright.runtime.parallel_model import ParallelModel
    from meshwright.search.answer import Answer

__all__ = [
    "check",
    "cluster",
    "estimate",
    "export",
    "import_plan",
    "model",
    "parallelize",
    "plan",
    "recipe",
    "uniform_plan",
]

_ClusterLike = str | Path | Cluster
_RecipeLike = str | Path | Recipe | dict[str, Any]


def model(what: Any) -> ModelSpec:
    """A model from its name, a ModelSpec file, a `config.json` or its folder, a configuration object, a torch module,
    or what builds a module: a function, a class, or its name, `module:function`.

    A module is run once without values (`meshwright.trace.trace`, which also takes example inputs). Raises
    UnknownNameError, DocumentError; TraceError where a module cannot be traced.
    """
    return find_model(what)


def cluster(what: _ClusterLike) -> Cluster:
    """A cluster from its shorthand (`4x8xh100`, `cpu:4`) or file. Raises UnknownNameError, DocumentError."""
    return resolve_cluster(what)


def recipe(what: _RecipeLike | None = None, **fields: Any) -> Recipe:
    """A recipe from its file, or from its fields: `recipe(global_batch=512, sequence=8192)`.

    Fields beside a file take the place of the file's, each as a whole. Raises DocumentError.
    """
    return resolve_recipe(what, **fields)


def check(
    plan: Plan | str | Path,
    *,
    scope: Scope = "meaning",
    model: Any = None,
    cluster: _ClusterLike | None = None,
    recipe: _RecipeLike | None = None,
) -> list[Problem]:
    """What is wrong with a plan by the rules of a scope; empty where nothing is.

    `model`, `cluster` and `recipe` are given where they are not the ones that the plan names. Whether it fits in
    memory is `estimate`'s matter. Raises UnknownNameError, DocumentError.
    """
    return check_plan(read_inputs(plan, model=model, cluster=cluster, recipe=recipe), scope)


def estimate(
    plan: Plan | str | Path,
    *,
    model: Any = None,
    cluster: _ClusterLike | None = None,
    recipe: _RecipeLike | None = None,
    calibration: "str | Path | Calibration | None" = None,
    order: str | Path | None = None,
) -> "Estimate":
    """The predicted time and memory of a plan, for what it names or what is given, with what devices reach by a
    calibration (a file, or `ideal` for all of it); none: the public one. `order` is a file with the table of an order,
    as torch.distributed.pipelining writes it, in place of the plan's schedule. Raises PlanError where the plan has no
    meaning or the order is another plan's, UnknownNameError, DocumentError.
    """
    from meshwright.cost.calibration import read_calibration
    from meshwright.cost.estimate import estimate_plan
    from meshwright.cost.order_tables import read_orders

    inputs = read_inputs(plan, model=model, cluster=cluster, recipe=recipe)
    reached = read_calibration(calibration) if calibration is not None else None
    return estimate_plan(inputs, reached, orders=read_orders(order, inputs.plan) if order is not None else None)


def plan(
    model: Any,
    cluster: _ClusterLike,
    recipe: _RecipeLike,
    *,
    calibration: "str | Path | Calibration | None" = None,
    **wishes: Any,
) -> "Answer":
    """The fastest plan that fits, with a proof of how far it can be from the best: `answer.plan`, `answer.estimate`,
    `answer.gap`. `wishes` are the fields of `meshwright.search.problem.Wishes`: `plan(model, cluster, recipe, tp=8,
    forbid=("zero3",))`; `global_batch="256..1024"` chooses the batch, `objective="tokens-per-device"` the number of
    devices; `answer.tried` has what they were chosen from. Ctrl-C answers with the best so far. Raises PlanError where
    no plan meets the wishes or these contradict each other, UnknownNameError, DocumentError.
    """
    from meshwright.cost.calibration import read_calibration
    from meshwright.search.problem import Problem, read_wishes
    from meshwright.search.sweep import find

    problem = Problem(find_model(model), resolve_cluster(cluster), resolve_recipe(recipe), read_wishes(wishes))
    return find(problem, read_calibration(calibration) if calibration is not None else None)


def export(
    plan: Plan | str | Path,
    *,
    to: str,
    model: Any = None,
    cluster: _ClusterLike | None = None,
    recipe: _RecipeLike | None = None,
    calibration: "str | Path | Calibration | None" = None,
) -> "Handover":
    """A plan as the files of another system (`megatron`, `torchtitan`, `deepspeed`, `accelerate`): `files` by name, and
    where the system cannot be told all of it, the nearest plan that was written, why, and what it costs: `plan`,
    `reasons`, `changes`, `slowdown`. Raises PlanError for an unknown system and where nothing near can be said,
    UnknownNameError, DocumentError.
    """
    from meshwright.cost.calibration import read_calibration
    from meshwright.export.handing import export_plan

    inputs = read_inputs(plan, model=model, cluster=cluster, recipe=recipe)
    return export_plan(inputs, to, read_calibration(calibration) if calibration is not None else None)


def import_plan(
    what: str | Path | Sequence[str],
    *,
    system: str,
    cluster: _ClusterLike,
    model: Any = None,
    recipe: _RecipeLike | None = None,
    sequence: int | None = None,
    global_batch: int | None = None,
    devices: int | None = None,
) -> "Taken":
    """What runs in another system today, from its files or flags: `inputs` are plan, model, cluster and recipe, `left`
    what says nothing of them. `model`, `recipe` or `sequence` and `global_batch`, and `devices`, where the settings
    do not say. Raises PlanError where they contradict each other, UnknownNameError, DocumentError.
    """
    from meshwright.export.taking import take_in

    found = find_model(model) if model is not None else None
    return take_in(
        what,
        system,
        cluster=cluster,
        model=found,
        recipe=recipe,
        sequence=sequence,
        global_batch=global_batch,
        devices=devices,
    )


def parallelize(
    module: "nn.Module",
    plan: Plan | str | Path,
    *,
    model: Any = None,
    cluster: _ClusterLike | None = None,
    recipe: _RecipeLike | None = None,
) -> "ParallelModel":
    """Make a module train under a plan, on the process group of torch.distributed. Needs the extra `train`.

    `module` holds the whole model, equal on every rank, or is on the meta device, where each rank makes its part alone.
    It is changed in place: afterwards it holds this rank's part. Without `model`, `module.config` says what it is, or
    else the plan. Raises PlanError where the runtime cannot run the plan, or the module is not the plan's model.
    """
    from meshwright.runtime.parallelize import parallelize as apply

    known = model if model is not None else getattr(module, "config", None)
    return apply(module, read_inputs(plan, model=known, cluster=cluster, recipe=recipe))
