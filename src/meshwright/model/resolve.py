"""A model from its name, file, folder or configuration."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.errors import DocumentError, UnknownNameError, did_you_mean
from meshwright.model.hf_config import config_of, from_config, read_config
from meshwright.model.spec import ModelSpec

CATALOG = Path(__file__).parent / "catalog"


@cache
def catalog_names() -> tuple[str, ...]:
    """The models that are known by name."""
    return tuple(
        sorted(entry.name.removesuffix(".json") for entry in CATALOG.iterdir() if entry.name.endswith(".json"))
    )


def from_catalog(name: str) -> ModelSpec:
    """A model of the catalogue. Raises UnknownNameError."""
    if name not in catalog_names():
        raise UnknownNameError(f"no model is called '{name}'; {did_you_mean(name, catalog_names())}")
    entry = _entry(name)
    return from_config(entry["config"], name, f"{entry['source']} ({entry['date']})")


def _entry(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CATALOG / f"{name}.json").read_text(encoding="utf-8"))
    return found


def configuration(what: str) -> "dict[str, Any] | None":
    """The Hugging Face configuration behind a name of the catalogue, a `config.json` or its folder; none where a model
    is described in another way. Raises UnknownNameError, DocumentError.
    """
    if what in catalog_names():
        return _entry(what)["config"]  # type: ignore[no-any-return]
    path = Path(what)
    if not path.exists():
        raise UnknownNameError(f"no model is called '{what}'; {did_you_mean(what, catalog_names())}")
    return config_of(path) if path.is_dir() or path.suffix == ".json" else None


def resolve_model(what: "str | Path | dict[str, Any] | ModelSpec | object") -> ModelSpec:
    """Whatever names a model → ModelSpec: a name, a ModelSpec file, a `config.json` or its folder, a configuration (a
    dictionary or a transformers one). Raises UnknownNameError, DocumentError.
    """
    if isinstance(what, ModelSpec):
        return what
    if isinstance(what, dict):
        return ModelSpec.from_data(what) if "meshwright_model" in what else from_config(what)
    if isinstance(what, str | Path):
        return _from_text(str(what))
    to_dict = getattr(what, "to_dict", None)
    if callable(to_dict):
        return from_config(to_dict(), source=type(what).__name__)
    raise DocumentError(f"a {type(what).__name__} is no model: give a name, a path, a configuration or a ModelSpec")


def _from_text(text: str) -> ModelSpec:
    if text in catalog_names():
        return from_catalog(text)
    try:
        found = Path(text).exists()
    except (OSError, ValueError):
        found = False
    if not found:
        hint = did_you_mean(text, catalog_names())
        raise UnknownNameError(f"no model is called '{text}', and no file or folder is there; {hint}")
    path = Path(text)
    if path.is_dir() or path.suffix == ".json":
        return read_config(path)
    return ModelSpec.read(path)
