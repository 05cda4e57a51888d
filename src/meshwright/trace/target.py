"""A model from whatever names or is one: as `model/resolve` reads it, or a module, or what builds one. torch is
imported for the latter two alone.
"""

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from meshwright.errors import MeshwrightError, UnknownNameError, did_you_mean
from meshwright.model import resolve
from meshwright.model.spec import ModelSpec

_TARGET = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def find_model(what: Any) -> ModelSpec:
    """A model from its name, a ModelSpec file, a `config.json` or its folder, a configuration, a torch module, or what
    builds a module: a function, a class, or its name, `module:function`.

    Raises UnknownNameError, DocumentError; TraceError where a module cannot be traced.
    """
    if isinstance(what, str) and is_target(what):
        return traced(load(what))
    if is_module(what) or (callable(what) and not hasattr(what, "to_dict")):
        return traced(what)
    return resolve.resolve_model(what)


def is_target(text: str) -> bool:
    """Whether a text names a Python object, as 'package.module:function' does, and no file.

    >>> is_target("models.llama:build"), is_target("llama-3.1-8b"), is_target("s3://bucket/file")
    (True, False, False)
    """
    return _TARGET.fullmatch(text) is not None and not Path(text).exists()


def is_module(what: object) -> bool:
    """Whether something is a torch module; none is where torch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(what, torch.nn.Module)


def traced(what: Any) -> ModelSpec:
    """A module, or what builds one, traced. Raises TraceError, and MeshwrightError where there is no torch."""
    try:
        from meshwright.trace.module import trace
    except ImportError as error:
        raise MeshwrightError(
            f"a module is traced with torch, which is not here ({error}); pip install 'meshwright[train]'"
        ) from None
    return trace(what)


def load(target: str) -> Any:
    """The object that 'package.module:function' names; the current directory is looked in first. Raises
    UnknownNameError, and MeshwrightError where the module itself fails.
    """
    name, _, path = target.partition(":")
    found = _imported(name, target)
    for word in path.split("."):
        if not hasattr(found, word):
            raise UnknownNameError(f"{target}: there is no '{word}'; {did_you_mean(word, _public(found))}")
        found = getattr(found, word)
    return found


def _public(where: Any) -> list[str]:
    return [name for name in vars(where) if not name.startswith("_")] if hasattr(where, "__dict__") else []


def _imported(name: str, target: str) -> Any:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise UnknownNameError(f"{target}: there is no module '{missing}' here or on the Python path") from None
        raise MeshwrightError(f"{target}: {name} needs '{missing}', which is not installed") from None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}"
        raise MeshwrightError(f"{target}: {last.filename}:{last.lineno}: {said}") from error
    finally:
        if added:
            sys.path.remove(here)
