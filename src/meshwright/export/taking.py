"""Taking in: a launch line or a file of another system → plan, model and recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.document import read_text
from meshwright.errors import DocumentError, PlanError, nearest
from meshwright.export.fields import Fields, check_model, plan_of, recipe_of
from meshwright.export.keys import Values, plain, read_keys, spelled
from meshwright.export.system import Given, System
from meshwright.export.systems import find_system
from meshwright.export.texts import DOCUMENTS, read_flags, read_settings
from meshwright.model.hf_config import from_config
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.recipe.resolve import resolve_recipe
from meshwright.recipe.spec import Recipe


@dataclass(frozen=True)
class Taken:
    """What was taken in."""

    system: System
    inputs: Inputs
    left: tuple[str, ...]
    """Names that say nothing of a plan, a recipe or a model, or that nobody knows, as they were written."""
    notes: tuple[str, ...] = ()
    named: str | None = None
    """The name of the model in the catalogue, where it was found by that."""


class Source(NamedTuple):
    """What was read, before anything is made of it."""

    values: Values
    devices: dict[str, int]
    text: str
    """Where from, for messages."""


def take_in(
    what: str | Path | Sequence[str],
    system: str,
    *,
    cluster: str | Path | Cluster,
    model: Any = None,
    recipe: str | Path | Recipe | dict[str, Any] | None = None,
    sequence: int | None = None,
    global_batch: int | None = None,
    devices: int | None = None,
) -> Taken:
    """The plan that a launch line or a file of another system describes: `what` is a file, a folder of files that were
    written here, or flags; several together are one. `model`, `recipe` or `sequence` and `global_batch` are given where
    it does not say enough, or something else is meant; `devices`: how many of the cluster's, where no launcher says it.

    Raises PlanError where the settings contradict each other or the model, DocumentError where they cannot be read.
    """
    known = find_system(system, written=False)
    also = {"recipe.sequence": sequence, "recipe.global_batch": global_batch, "world": devices}
    return from_source(known, read_source(known, what), cluster=cluster, model=model, recipe=recipe, also=also)


def from_source(
    system: System, source: Source, *, cluster: Any, model: Any = None, recipe: Any = None, also: Fields | None = None
) -> Taken:
    """The same of what was read; `also`: fields that are known besides."""
    fields, left = read_keys(system.keys, source.values, source.text)
    if "devices_a_node" in source.devices:
        fields["world"] = source.devices["devices_a_node"] * source.devices.get("nodes", 1)
    where, spec = resolve_cluster(cluster), resolve_model(model) if model is not None else None
    asked = resolve_recipe(recipe) if recipe is not None else None
    try:
        inputs, named = _made(system, _joint(fields, asked, also or {}), where, spec, asked)
    except PlanError as error:
        raise PlanError(f"{source.text}: {error}") from None
    return Taken(system, inputs, _listed(left, source), tuple(_hints(system, left)), named)


def _joint(fields: Fields, asked: Recipe | None, also: Fields) -> Fields:
    """With what is known besides. Raises PlanError where that is something else."""
    for name, value in also.items():
        if value is not None and fields.setdefault(name, value) != value:
            raise PlanError(f"{name} is {fields[name]}, and {value} was given; leave one of them out")
    if asked is None:
        return fields
    return fields | {"recipe.global_batch": asked.global_batch, "recipe.sequence": asked.sequence}


def _made(
    system: System, fields: Fields, cluster: Cluster, model: ModelSpec | None, asked: Recipe | None
) -> tuple[Inputs, str | None]:
    """The plan with what it is for, and the name of its model where that was found by name."""
    spec, named = (model, None) if model is not None else _model(system, fields)
    check_model(fields, spec)
    fields = system.finish(fields, Given(spec, cluster))
    recipe = asked if asked is not None else _recipe(fields)
    plan = plan_of({"kernels": system.kernels} | fields, spec, cluster, recipe)
    return Inputs(plan, spec, cluster, recipe), named


def _listed(left: Sequence[str], source: Source) -> tuple[str, ...]:
    """What was left out; words that belong to no flag as they stand."""
    return tuple(word for name in left for word in ([name] if name else source.values[""]))


def _recipe(fields: Fields) -> Recipe:
    for name, words in {"global_batch": "the batch of a step", "sequence": "positions per sample"}.items():
        if fields.get(f"recipe.{name}") is None:
            raise PlanError(f"nothing says {words}; give --recipe, or --seq and --global-batch")
    return recipe_of(fields)


def _model(system: System, fields: Fields) -> tuple[ModelSpec, str | None]:
    found = system.model(fields)
    if found is None:
        raise PlanError("the settings do not describe the model; give --model")
    if isinstance(found, str):
        return resolve_model(found), found
    layers = next(found[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if name in found)
    return from_config(found, f"{found['model_type']}-{layers}x{found['hidden_size']}", system.name), None


def _hints(system: System, left: Sequence[str]) -> list[str]:
    """What was perhaps meant by names that are like known ones."""
    known = {plain(key.name): key.name for key in system.keys}
    meant = {name: nearest(plain(name), known, 1) for name in left}
    close = {name: found[0] for name, found in meant.items() if found and _alike(plain(name), found[0])}
    return [f"{name}: not known; did you mean {known[found]}?" for name, found in close.items()]


def _alike(one: str, other: str) -> bool:
    import difflib

    return difflib.SequenceMatcher(None, one, other).ratio() > 0.9


def read_source(system: System, what: str | Path | Sequence[str]) -> Source:
    """What files and flags say, by the system's names. Raises DocumentError."""
    pieces = [str(what)] if isinstance(what, str | Path) else [str(piece) for piece in what]
    if not pieces:
        raise PlanError(f"{system.name}: give a file, or flags")
    values: Values = {}
    devices: dict[str, int] = {}
    flags: list[str] = []
    names: list[str] = []
    for piece in pieces:
        if piece.startswith("-") or (flags and not _is_file(piece)):
            flags += piece.split() if " " in piece else [piece]
            continue
        for path in _files(piece):
            names.append(str(path))
            found, more = read_settings(path, read_text(path))
            values, devices = joined(values, found, str(path)), devices | more
    if flags:
        names.append("flags")
        values = joined(values, read_flags(flags, "flags"), "flags")
    for flag in system.refers:
        named = values.get(spelled(values, flag) or flag)
        folders = [".", *(str(Path(name).parent) for name in names)]
        found_at = [Path(folder) / named for folder in folders if isinstance(named, str)]
        for path in [path for path in found_at if path.is_file()][:1]:
            values = joined(values, read_settings(path, read_text(path))[0], str(path))
    return Source(values, devices, ", ".join(names))


def _is_file(piece: str) -> bool:
    try:
        return Path(piece).exists()
    except (OSError, ValueError):
        return False


def _files(piece: str) -> list[Path]:
    path = Path(piece)
    if _is_file(piece) and path.is_dir():
        found = sorted(each for each in path.iterdir() if each.suffix in (*DOCUMENTS, ".args", ".sh"))
        if not found:
            raise DocumentError(f"{piece}: no file of settings is in this folder")
        return found
    return [path]


def joined(values: Values, more: Values, source: str) -> Values:
    """Both, where they do not contradict each other. Raises DocumentError."""
    for name, value in more.items():
        other = spelled(values, name)
        if other is not None and values[other] != value:
            raise DocumentError(
                f"{source}: {name} is {value}, and {values[other]} was said before; leave one of them out"
            )
    return values | more
