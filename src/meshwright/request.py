"""The command line's own reading: from what is typed to a plan, in a file or as the uniform plan of the options."""

import os
from collections.abc import Mapping
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
from meshwright.search.problem import Wishes
from meshwright.units import parse_bytes


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


def wishes_of(options: Mapping[str, Any]) -> Wishes:
    """What a plan must have, by the options of `plan`. Raises PlanError."""
    given = {field.name: options[field.name] for field in fields(Wishes) if options.get(field.name) is not None}
    if "memory_limit" in given:
        try:
            given["memory_limit"] = parse_bytes(given["memory_limit"])
        except ValueError as error:
            raise PlanError(f"--memory-limit: {error}") from None
    return Wishes(**given | {"forbid": tuple(given.get("forbid", ()))})


def _uniform(named: Named, given: Mapping[str, Any], output: str | None) -> Inputs:
    model, cluster, recipe = problem_of(named, given, "estimate")
    plan = uniform_plan(model, cluster, recipe, **{name: given[name] for name in SHAPE if name in given})
    if output is not None:
        with_sources(plan, named, output).write(output)
    return Inputs(plan, model, cluster, recipe)


def _recipe(path: str | None, size: Mapping[str, Any]) -> Recipe:
    if path is None:
        data = {"meshwright_recipe": 1, "global_batch": size["global_batch"], "sequence": _sequence(size["seq"])}
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
