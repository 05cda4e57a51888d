"""The command line's own reading: from what is typed to a plan, in a file or as the uniform plan of the options."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError
from meshwright.model.resolve import catalog_names, resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rules import Inputs
from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe
from meshwright.search.batches import Batches, read_batches
from meshwright.search.problem import Problem, Wishes
from meshwright.units import parse_bytes, parse_seconds


class Named(NamedTuple):
    """A model, a cluster and a recipe by their names or files; none where nothing was said."""

    model: str | None
    cluster: str | None
    recipe: str | None


SHAPE = tuple(name for name, each in signature(uniform_plan).parameters.items() if each.kind is each.KEYWORD_ONLY)
"""What a uniform plan can be told."""
SIZE = ("seq", "global_batch")
"""What a recipe says, where there is none."""


def requested(path: str | None, named: Named, options: Mapping[str, Any], output: str | None) -> Inputs:
    """The plan of a file, or the uniform plan of `options` (only `SHAPE` and `SIZE` count), written to `output`.

    Raises PlanError for an option that is missing or has no effect, and all that reading a plan or making one raises.
    """
    given = {
        name: options[name] for name in (*SIZE, *SHAPE) if options.get(name) is not None and options[name] is not False
    }
    return _uniform(named, given, output) if path is None else _in_file(path, named, given, output)


def _in_file(path: str, named: Named, given: Mapping[str, Any], output: str | None) -> Inputs:
    idle = [_flag(name) for name in given] + ["-o"] * (output is not None)
    if idle:
        raise PlanError(f"{', '.join(idle)}: for uniform plans, and {path} is a plan already; leave one of them out")
    return read_inputs(path, model=named.model, cluster=named.cluster, recipe=named.recipe)


def problem_of(named: Named, options: Mapping[str, Any], verb: str) -> tuple[ModelSpec, Cluster, Recipe]:
    """What a verb is asked about without a plan file; of `options` only `SIZE` counts. Raises PlanError for an option
    that is missing or has no effect.
    """
    given = {name: options[name] for name in SIZE if options.get(name) is not None}
    missing = [f"--{noun}" for noun in ("model", "cluster") if getattr(named, noun) is None]
    if named.recipe is None:
        missing += [_flag(name) for name in SIZE if name not in given]
    if missing:
        raise PlanError(f"without a plan file, {', '.join(missing)} must be given; see meshwright {verb} --help")
    model, cluster = resolve_model(str(named.model)), resolve_cluster(str(named.cluster))
    return model, cluster, _recipe(named.recipe, given)


def question_of(named: Named, options: Mapping[str, Any]) -> Problem:
    """What `plan` is asked; near a plan, for what that is for. Raises PlanError, and all that reading raises."""
    wishes = wishes_of(options)
    if wishes.near is None:
        return Problem(*problem_of(named, options, "plan"), wishes)
    said = [_flag(name) for name in SIZE if options.get(name) is not None]
    if said:
        raise PlanError(f"{', '.join(said)}: {options['near']} says that already; leave it out")
    found = read_inputs(options["near"], model=named.model, cluster=named.cluster, recipe=named.recipe)
    return Problem(found.model, found.cluster, found.recipe, wishes)


def wishes_of(options: Mapping[str, Any]) -> Wishes:
    """What a plan must have, by the options of `plan`. Raises PlanError."""
    given = {field.name: options[field.name] for field in fields(Wishes) if options.get(field.name) is not None}
    for name, parse in _PARSED.items():
        if name in given:
            try:
                given[name] = parse(given[name])
            except ValueError as error:
                raise PlanError(f"{_flag(name)}: {error}") from None
    return Wishes(**given | {"forbid": tuple(given.get("forbid", ()))})


def _range(text: str) -> Batches | None:
    """None for a single batch, which the recipe has."""
    return None if text.strip().isdecimal() else read_batches(text)


_PARSED: dict[str, Callable[[str], Any]] = {
    "memory_limit": parse_bytes,
    "within": parse_seconds,
    "global_batch": _range,
    "near": Plan.read,
}
"""Wishes that are typed in another form than they have."""


def _uniform(named: Named, given: Mapping[str, Any], output: str | None) -> Inputs:
    model, cluster, recipe = problem_of(named, given, "estimate")
    plan = uniform_plan(model, cluster, recipe, **{name: given[name] for name in SHAPE if name in given})
    if output is not None:
        with_sources(plan, named, output).write(output)
    return Inputs(plan, model, cluster, recipe)


def _recipe(path: str | None, size: Mapping[str, Any]) -> Recipe:
    if path is None:
        batch = size["global_batch"]
        if isinstance(batch, str):
            batch = int(batch) if _range(batch) is None else read_batches(batch).high
        data = {"meshwright_recipe": 1, "global_batch": batch, "sequence": _sequence(size["seq"])}
        return Recipe.from_data(data, "the options")
    if size:
        raise PlanError(f"{', '.join(map(_flag, size))}: the recipe {path} says that already; leave it out")
    return Recipe.read(path)


def _sequence(text: str) -> int | dict[str, int]:
    """A number of positions, or one for each stream.

    >>> _sequence("4096"), _sequence("source=512,target=128")
    (4096, {'source': 512, 'target': 128})
    """
    if text.strip().isdecimal():
        return int(text)
    pieces = [[side.strip() for side in piece.split("=")] for piece in text.split(",")]
    if any(len(piece) != 2 or not piece[1].isdecimal() for piece in pieces) or len(dict(pieces)) < len(pieces):
        raise PlanError(f"--seq: write a number, or one for each stream like 'source=512,target=128' (got '{text}')")
    return {stream: int(length) for stream, length in pieces}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def with_sources(plan: Plan, named: Named, path: str) -> Plan:
    """The plan with the files that its model, cluster and recipe came from, relative to where it is written."""
    found = {
        "model": None if named.model in catalog_names() else named.model,
        "cluster": named.cluster if named.cluster and Path(named.cluster).exists() else None,
        "recipe": named.recipe,
    }
    folder = Path(path).resolve().parent
    references = {
        noun: getattr(plan, noun).model_copy(update={"source": os.path.relpath(Path(source).resolve(), folder)})
        for noun, source in found.items()
        if source is not None
    }
    return Plan(**{name: getattr(plan, name) for name in Plan.model_fields} | references)
