"""A configuration's fields, read with care."""

from typing import Any

from meshwright.errors import DocumentError
from meshwright.explain import shown

MAX_SIZE = 10**9
"""Of any one number in a configuration."""


class Config:
    """A configuration's fields: one that is missing, or no number, is an error that names it."""

    def __init__(self, fields: dict[str, Any], source: str) -> None:
        self.fields, self.source = fields, source

    def error(self, name: str, message: str) -> DocumentError:
        """What is wrong with a field."""
        return DocumentError(f"{self.source}: {name}: {message}")

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.fields.get(name)
        value = default if value is None else value
        if value is None:
            raise self.error(name, "required key is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self.error(name, f"must be a whole number from 1 to {MAX_SIZE:,} (got {shown(value)})")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false (got {shown(value)})")
        return value

    def word(self, name: str, default: str) -> str:
        """A word."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a word (got {shown(value)})")
        return value

    def chance(self, name: str, default: float) -> float:
        """A probability under one."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self.error(name, f"must be a probability under 1 (got {shown(value)})")
        return float(value)
