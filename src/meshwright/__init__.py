"""Meshwright: automatic distributed training of foundation models.

    import meshwright as mw

    answer = mw.estimate("plan.yaml")

`model`, `cluster`, `recipe`, `plan` and `export` are packages too; import from them by
`from meshwright.model.spec import ModelSpec`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshwright.errors import MeshwrightError
from meshwright.version import __version__

if TYPE_CHECKING:
    from meshwright.api import (
        check,
        cluster,
        estimate,
        export,
        import_plan,
        model,
        parallelize,
        plan,
        recipe,
        uniform_plan,
    )

__all__ = [
    "MeshwrightError",
    "__version__",
    "check",
    "cluster",
    "estimate",
    "export",
    "import_plan",
    "model",
    "parallelize",
    "plan",
    "recipe",
    "uniform_plan",
]

# First of all, so that no later import of one of their modules sets these names to the packages, over the functions.
for _package in ("cluster", "export", "model", "plan", "recipe"):
    import_module(f"meshwright.{_package}")
    del globals()[_package]


def __getattr__(name: str) -> Any:
    """The functions of `meshwright.api`, imported with the first of them: a command that needs none starts sooner."""
    if name not in __all__:
        raise AttributeError(f"module 'meshwright' has no attribute '{name}'")
    from meshwright import api

    globals().update({function: getattr(api, function) for function in __all__ if hasattr(api, function)})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
