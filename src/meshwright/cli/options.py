"""Options that several verbs take."""

from typing import Annotated, Literal

import typer
from typer.models import OptionInfo

from meshwright.plan.words import Kernels

_MODEL = "A known name, a ModelSpec file, or a config.json or its folder."
CLUSTER = "A shorthand (8xh100, 4x8xa100-80gb:ib400, cpu:4, local) or a file."
_ZERO = "What dp, cp and ulysses shard: 1 optimizer states, 2 gradients too, 3 parameters too."
_SEQUENCE = "Positions per sample, without a recipe; by stream where a model has several."
_CALIBRATION = "What devices and links reach of their peaks; ideal: all of them."
WEIGHTS = "A Hugging Face folder, a checkpoint, or a run's folder, whose last checkpoint is taken."
REMOTE = "Run the Python code that comes with the model's folder, if it needs any."
INSTALL = "pip install 'meshwright[train]'"


def model_names(typed: str) -> list[str]:
    """Names for the shell to complete."""
    from meshwright.model.resolve import catalog_names

    return [name for name in catalog_names() if name.startswith(typed)]


def number(name: str, text: str) -> OptionInfo:
    """An option that takes a whole number."""
    option: OptionInfo = typer.Option(name, metavar="N", help=text)
    return option


Recompute = Literal["none", "full", "selective"]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME|PATH", help=_MODEL, autocompletion=model_names)
]
ClusterOption = Annotated[str | None, typer.Option("--cluster", metavar="SPEC", help=CLUSTER)]
RecipeOption = Annotated[str | None, typer.Option("--recipe", metavar="PATH", help="A recipe file.")]
CalibrationOption = Annotated[str | None, typer.Option("--calibration", metavar="PATH|ideal", help=_CALIBRATION)]
Whole = int | None
SeqOption = Annotated[str | None, typer.Option("--seq", metavar="N|STREAM=N,...", help=_SEQUENCE)]
ZeroOption = Annotated[Whole, typer.Option("--zero", metavar="0|1|2|3", help=_ZERO)]
MicroBatchesOption = Annotated[Whole, number("--micro-batches", "A count, in place of --micro-batch.")]
KernelsOption = Annotated[Kernels | None, typer.Option(help="What the implementation fuses and keeps.")]
PlanOutput = Annotated[str | None, typer.Option("-o", "--output", metavar="PATH", help="Write the plan here.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
