"""From a run file and what is typed beside it to a job: model, plan and prediction found."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshwright.cluster.resolve import resolve_cluster
from meshwright.document import read_text, write_text
from meshwright.errors import DocumentError, PlanError
from meshwright.model.resolve import catalog_names, configuration
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rules import Inputs
from meshwright.recipe.overrides import with_overrides
from meshwright.recipe.run import Run
from meshwright.recipe.spec import Recipe
from meshwright.trace.target import is_target
from meshwright.train.job import Job

RUN_FILE, PLAN_FILE, CONFIG_FILE = "run.yaml", "plan.yaml", "config.json"
"""In a run's folder: what it was resolved to, and transformers' configuration of its model, where it has one."""
_PATHS = ("model", "cluster", "plan", "recipe")
"""Keys that may name files, which lie relative to the run file."""
_DATA_PATHS = ("source", "tokenizer", "chat_template")
"""Those of its data section; a source may be a pattern."""


def read_run(path: str | Path, overrides: Sequence[str] = ()) -> Run:
    """A run file with `key=value` on top. Files that it names lie relative to it, those that are typed to where one is.

    Raises DocumentError.
    """
    from meshwright.yaml12 import load

    data, lines = load(read_text(path), str(path))
    folder = Path(path).parent
    if isinstance(data, dict):
        data = _beside(data, _PATHS, folder)
        if isinstance(data.get("data"), dict):
            data |= {"data": _beside(data["data"], _DATA_PATHS, folder)}
        judged = data.get("evaluation")
        if isinstance(judged, dict) and isinstance(judged.get("data"), dict):
            data |= {"evaluation": judged | {"data": _beside(judged["data"], _DATA_PATHS, folder)}}
    data = _with_recipe(with_overrides(_with_recipe(data), overrides))
    return Run.from_data(data, str(path), lines)


def _beside(section: dict[str, Any], keys: Sequence[str], folder: Path) -> dict[str, Any]:
    """A section with the paths under these keys as they are seen from here."""
    return section | {key: _seen_from_here(section[key], folder) for key in keys if key in section}


def _seen_from_here(value: Any, folder: Path) -> Any:
    """A path as seen from here, where it names something beside the run file."""
    if not isinstance(value, str) or value in catalog_names():
        return value
    is_pattern = "*" in value and not Path(value).is_absolute()
    there = (folder / value).exists() or (is_pattern and any(folder.glob(value)))
    return str(folder / value) if there else value


def _with_recipe(data: Any) -> Any:
    """The same with its recipe's fields in the place of the file that it names."""
    if not isinstance(data, dict) or not isinstance(data.get("recipe"), str):
        return data
    return data | {"recipe": {"meshwright_recipe": 1} | Recipe.read(data["recipe"]).as_data()}


def job_of(run: Run, *, devices: int | None = None, progress: Callable[[Any], None] = lambda _: None) -> Job:
    """A run with its plan, which is searched where none is given, and what that is predicted to take.

    `devices` is how many processes a launcher started; none: as many as the plan has. Raises PlanError, and all that
    reading raises.
    """
    from meshwright.cost.estimate import estimate_placement, model_flops, peak_flops
    from meshwright.cost.placement import Placement
    from meshwright.trace.target import find_model

    model = find_model(run.model)
    if run.plan is not None:
        inputs = read_inputs(run.plan, model=model, cluster=run.cluster, recipe=run.recipe)
    else:
        inputs = _searched(run, model, devices, progress)
    _check(inputs, devices)
    placement = Placement(inputs, None)
    predicted = estimate_placement(placement).step_time_s
    return Job(run, inputs, predicted, model_flops(placement), peak_flops(placement))


def _searched(run: Run, model: Any, devices: int | None, progress: Callable[[Any], None]) -> Inputs:
    from meshwright.search.choice import inputs_of
    from meshwright.search.plain import fastest_plain, is_chain
    from meshwright.search.problem import Problem, Wishes
    from meshwright.search.sweep import find

    name = run.cluster if run.cluster is not None else "local" if devices is None else f"cpu:{devices}"
    problem = Problem(model, resolve_cluster(name), run.recipe, Wishes(scope="runtime", kernels="hf-sdpa"))
    if not is_chain(model):
        return fastest_plain(problem)
    answer = find(problem, None, progress)
    return inputs_of(problem, answer.plan)


def _check(inputs: Inputs, devices: int | None) -> None:
    """What every rank would find too, said once and before any process starts."""
    from meshwright.plan.rules import check_plan

    errors = [str(problem) for problem in check_plan(inputs, "runtime") if problem.severity == "error"]
    if errors:
        raise PlanError("the runtime cannot run this plan:\n" + "\n".join(errors))
    wanted = inputs.plan.world_size
    if devices is not None and devices != wanted:
        raise PlanError(f"the plan is for {wanted} processes, but {devices} run; start {wanted}, or plan for {devices}")


def write_resolved(job: Job) -> None:
    """Keep in the run's folder what it was resolved to. Raises DocumentError."""
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot make the run's folder {job.folder}: {error.strerror}") from None
    job.run.write(job.folder / RUN_FILE)
    job.inputs.plan.write(job.folder / PLAN_FILE)
    config = None if is_target(job.run.model) else configuration(job.run.model)
    if config is not None:
        write_text(job.folder / CONFIG_FILE, json.dumps(config, indent=2) + "\n")
