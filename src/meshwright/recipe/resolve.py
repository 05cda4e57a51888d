"""A recipe from its file or its fields."""

from pathlib import Path
from typing import Any

from meshwright.errors import DocumentError
from meshwright.recipe.spec import Recipe


def resolve_recipe(what: str | Path | Recipe | dict[str, Any] | None = None, **fields: Any) -> Recipe:
    """Whatever says what is asked for → Recipe: a file, a Recipe, a dictionary of fields, or nothing but `fields`.

    Each of `fields` takes the place of the whole field of its name. Raises DocumentError.
    """
    if isinstance(what, Recipe) and not fields:
        return what
    if isinstance(what, str | Path):
        what = Recipe.read(what)
        return resolve_recipe(what, **fields) if fields else what
    if what is not None and not isinstance(what, Recipe | dict):
        raise DocumentError(f"a {type(what).__name__} is no recipe: give a file, a Recipe or its fields")
    known = what.as_data() if isinstance(what, Recipe) else what or {}
    return Recipe.from_data({"meshwright_recipe": 1} | known | fields, "recipe")
