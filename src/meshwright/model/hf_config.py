"""A Hugging Face `config.json` → ModelSpec, without importing transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright.document import read_text
from meshwright.errors import DocumentError, did_you_mean
from meshwright.explain import explain, shown
from meshwright.model.families.config import Config
from meshwright.model.families.gpt2 import gpt2
from meshwright.model.families.llama import llama
from meshwright.model.spec import ModelSpec

FAMILIES: dict[str, Callable[[Config, str], ModelSpec]] = {"llama": llama, "gpt2": gpt2}
"""The value of `model_type` → how to read the rest."""


def from_config(config: Any, name: str = "", source: str = "config") -> ModelSpec:
    """A `config.json` as a dictionary → ModelSpec. Raises DocumentError where a field is missing or the family is
    unknown.
    """
    if not isinstance(config, dict):
        raise DocumentError(f"{source}: a configuration is a mapping with a 'model_type'")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        said = f"{shown(kind)} is no family that is known" if kind is not None else "required key is missing"
        raise DocumentError(f"{source}: model_type: {said}; {did_you_mean(str(kind), FAMILIES)}")
    name = name or str(config.get("_name_or_path") or kind)
    try:  # JSON can hold halves of characters, YAML cannot
        return FAMILIES[kind](Config(config, source), name.encode(errors="replace").decode())
    except ValidationError as error:  # sizes that do not go together
        raise DocumentError(explain(error, source)) from None


def read_config(path: str | Path, name: str = "") -> ModelSpec:
    """A `config.json`, or the folder that holds one → ModelSpec."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        config = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DocumentError(f"{file}{line}: not JSON: {getattr(error, 'msg', error)}") from None
    return from_config(config, name or file.resolve().parent.name, str(file))
