"""The JSON Schemas of our documents."""

from importlib import import_module
from typing import Any

NOUNS = {
    "plan": ("meshwright.plan.spec", "Plan"),
    "model": ("meshwright.model.spec", "ModelSpec"),
    "cluster": ("meshwright.cluster.spec", "Cluster"),
    "recipe": ("meshwright.recipe.spec", "Recipe"),
    "run": ("meshwright.recipe.run", "Run"),
    "calibration": ("meshwright.cost.calibration", "Calibration"),
}
"""The kind of a document → the module and the class; one is imported at a time."""


def schema_of(noun: str) -> dict[str, Any]:
    """The JSON Schema of one of `NOUNS`."""
    module, name = NOUNS[noun]
    schema: dict[str, Any] = getattr(import_module(module), name).json_schema()
    return schema
