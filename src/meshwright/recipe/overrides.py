"""`key=value` on a command line: a field of a document, by its dotted path."""

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.errors import DocumentError


def with_overrides(data: Any, given: Iterable[str]) -> Any:
    """Plain data with some of its fields replaced; mappings on the way are made. A value is YAML.

    Raises DocumentError for what is no `key=value`, or goes into something that is no mapping.

    >>> with_overrides({"recipe": {"seed": 1, "global_batch": 8}}, ["recipe.seed=2", "logging.every=5"])
    {'recipe': {'seed': 2, 'global_batch': 8}, 'logging': {'every': 5}}
    """
    from meshwright.yaml12 import load

    for text in given:
        path, equals, value = text.partition("=")
        steps = path.strip().split(".")
        if not equals or not all(steps):
            raise DocumentError(f"'{text[:80]}' is no override; write key=value, as in recipe.seed=7 or steps=200")
        data = _replaced(data, steps, load(value, f"the value of {path.strip()}")[0] if value else None, path.strip())
    return data


def _replaced(data: Any, steps: Sequence[str], value: Any, path: str) -> Any:
    if not steps:
        return value
    if data is not None and not isinstance(data, dict):
        raise DocumentError(f"{path}: there is no '{steps[0]}' inside of a {type(data).__name__}")
    known = dict(data or {})
    return known | {steps[0]: _replaced(known.get(steps[0]), steps[1:], value, path)}
