"""A configuration's fields, read with care."""

from collections.abc import Mapping
from typing import Any

from meshwright.errors import DocumentError, did_you_mean
from meshwright.explain import shown
from meshwright.model.spans import MAX_LAYERS

MAX_SIZE = 10**9
"""Of any one number in a configuration."""


class Config:
    """A configuration's fields: one that is missing, or no number, is an error that names it."""

    def __init__(self, fields: dict[str, Any], source: str) -> None:
        self.fields, self.source = fields, source

    def error(self, name: str, message: str) -> DocumentError:
        """What is wrong with a field."""
        return DocumentError(f"{self.source}: {name}: {message}")

    def completed(self, defaults: Mapping[str, Any], aliases: Mapping[str, str] | None = None) -> "Config":
        """The fields as a family names them, and what transformers' configuration class puts where one is left out.
        `aliases` are other names of a field. Raises DocumentError where both names say something else.
        """
        fields = dict(self.fields)
        for alias, name in (aliases or {}).items():
            if alias in fields and fields.setdefault(name, fields[alias]) != fields[alias]:
                raise self.error(alias, f"{shown(fields[alias])} contradicts {name}, which is {shown(fields[name])}")
        return Config({**defaults, **fields}, self.source)

    def size(self, name: str, default: int | None = None, *, limit: int = MAX_SIZE) -> int:
        """A positive whole number."""
        value = self.fields.get(name)
        value = default if value is None else value
        if value is None:
            raise self.error(name, "required key is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self.error(name, f"must be a whole number from 1 to {limit:,} (got {shown(value)})")
        return value

    def layers(self, name: str = "num_hidden_layers") -> int:
        """How many layers there are."""
        return self.size(name, limit=MAX_LAYERS)

    def optional_size(self, name: str) -> int | None:
        """A positive whole number; none where the field is null or left out."""
        return None if self.fields.get(name) is None else self.size(name)

    def count(self, name: str, default: int = 0, *, limit: int = MAX_SIZE) -> int:
        """A whole number, 0 or more."""
        value = self.fields.get(name)
        value = default if value is None else value
        zero = isinstance(value, int) and not isinstance(value, bool) and value == 0
        return 0 if zero else self.size(name, default, limit=limit)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(name, default)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false (got {shown(value)})")
        return value

    def word(self, name: str, default: str) -> str:
        """A word."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a word (got {shown(value)})")
        return value

    def words(self, name: str, count: int, allowed: tuple[str, ...]) -> list[str] | None:
        """A word for each layer, all of them known ones; none where the field is null or left out."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != count:
            raise self.error(name, f"must be a list of {count} words, one a layer (got {shown(value)})")
        strange = next((word for word in value if word not in allowed), None)
        if strange is not None:
            raise self.error(name, f"{shown(strange)} is not known; {did_you_mean(str(strange), allowed)}")
        return list(value)

    def indices(self, name: str) -> list[int]:
        """Whole numbers, 0 or more, such as those of layers; empty where the field is null or left out."""
        value = self.fields.get(name) or []
        if not isinstance(value, list | tuple) or any(
            isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in value
        ):
            raise self.error(name, f"must be a list of whole numbers, 0 or more (got {shown(value)})")
        return list(value)

    def chance(self, name: str, default: float) -> float:
        """A probability under one."""
        value = self.fields.get(name, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self.error(name, f"must be a probability under 1 (got {shown(value)})")
        return float(value)

    def share(self, name: str, default: float) -> float:
        """A part of a whole: over 0, and 1 at most."""
        value = self.fields.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise self.error(name, f"must be a share from 0 to 1 (got {shown(value)})")
        return float(value)

    def inner(self, name: str) -> "Config":
        """The fields of a mapping within; an empty one where the field is null or left out."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, f"must be a mapping (got {shown(value)})")
        return Config(value or {}, f"{self.source}: {name}")

    def only(self, name: str, *allowed: Any, default: Any = None) -> None:
        """Raises DocumentError where a field asks for what transformers' model, or our reader, does not do."""
        value = self.fields.get(name, default)
        if value not in allowed:
            said = " or ".join(shown(choice) for choice in allowed)
            raise self.error(name, f"only {said} is known for this family (got {shown(value)})")
