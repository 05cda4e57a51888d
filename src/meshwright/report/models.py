"""The models that are known by name, as a list to search."""

import re
from collections.abc import Iterable
from typing import Any

from meshwright.model.resolve import catalog_names, from_catalog
from meshwright.model.spec import ModelSpec
from meshwright.report.blocks import Block, Lines, table
from meshwright.report.hazards import hazards
from meshwright.units import show_count


def models_data(pattern: str = "") -> list[dict[str, Any]]:
    """Every known model that all words of the pattern occur in, by name or family; those of one line of models
    together, smallest first.
    """
    words = pattern.lower().split()
    found = (_row(from_catalog(name)) for name in catalog_names())
    matching = (row for row in found if all(word in f"{row['name']} {row['family']}" for word in words))
    return sorted(matching, key=lambda row: (_letters(row["name"]), row["parameters"]))


def models_blocks(pattern: str = "") -> list[Block]:
    """The same for a person."""
    data = models_data(pattern)
    if not data:
        return [Lines("", (f"no known model has '{pattern}' in its name or family",), "warning")]
    columns = "name | family | >parameters | >active | >layers | streams | source"
    return [table("", columns, list(_lines(data)))]


def _lines(data: list[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    for row in data:
        active = show_count(row["active_parameters"]) if row["active_parameters"] != row["parameters"] else ""
        numbers = (show_count(row["parameters"]), active, f"{row['layers']:,}")
        yield row["name"], row["family"], *numbers, ", ".join(row["streams"]), row["source"]


def _row(spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "family": spec.family,
        "parameters": spec.parameters,
        "active_parameters": spec.active_parameters,
        "layers": len(spec.layers),
        "streams": list(spec.streams),
        "hazards": [hazard.name for hazard in hazards(spec)],
        "source": spec.source,
    }


def _letters(name: str) -> str:
    """What names of one line of models have in common: 'qwen2.5-72b' → 'qwen'."""
    return re.split(r"[^a-z]", name)[0]
