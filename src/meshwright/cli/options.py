"""Options that several verbs take."""

from typing import Annotated, Literal

import typer
from typer.models import OptionInfo

_MODEL = "A known name, a ModelSpec file, or a config.json or its folder."
CLUSTER = "A shorthand (8xh100, 4x8xa100-80gb:ib400, cpu:4, local) or a file."
ZERO = "What dp, cp and ulysses shard: 1 optimizer states, 2 gradients too, 3 parameters too."
SEQUENCE = "Positions per sample, without a recipe; by stream where a model has several."
_CALIBRATION = "What devices and links reach of their peaks; ideal: all of them."


def model_names(typed: str) -> list[str]:
    """Names for the shell to complete."""
    from meshwright.model.resolve import catalog_names

    return [name for name in catalog_names() if name.startswith(typed)]


def number(name: str, text: str) -> OptionInfo:
    """An option that takes a whole number."""
    option: OptionInfo = typer.Option(name, metavar="N", help=text)
    return option


Recompute = Literal["none", "full", "selective"]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME|PATH", help=_MODEL, autocompletion=model_names)
]
ClusterOption = Annotated[str | None, typer.Option("--cluster", metavar="SPEC", help=CLUSTER)]
RecipeOption = Annotated[str | None, typer.Option("--recipe", metavar="PATH", help="A recipe file.")]
CalibrationOption = Annotated[str | None, typer.Option("--calibration", metavar="PATH|ideal", help=_CALIBRATION)]
Whole = int | None
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
