"""Handing plans over to other systems, and taking in what runs there."""

from typing import Annotated

import typer

from meshwright.cli.base import app
from meshwright.cli.options import (
    CalibrationOption,
    ClusterOption,
    Json,
    ModelOption,
    PlanFile,
    RecipeOption,
    Whole,
    number,
)

_TO = "megatron|torchtitan|deepspeed|accelerate"
_FROM = "megatron|megatron-deepspeed|neox|torchtitan|deepspeed|accelerate"
_FOR = "Write the plan and its recipe here, and the model beside them where no name says it."
_EXPORT_EXAMPLES = """Example: meshwright export plan.yaml --to megatron -o megatron.args

Example: meshwright export plan.yaml --to accelerate -o configs/"""
_IMPORT_EXAMPLES = """Example: meshwright import --from megatron train.sh --cluster 16x8xa100-80gb -o plan.yaml

Example: meshwright import --from deepspeed ds.json --model llama-3.1-8b --cluster 8xh100 --seq 8192 -o plan.yaml"""


@app.command(short_help="Write a plan as another system's files.", epilog=_EXPORT_EXAMPLES)
def export(
    plan: PlanFile,
    *,
    to: Annotated[str, typer.Option("--to", metavar=_TO, help="The system.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE|FOLDER", help="Write here; none: print.")
    ] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    calibration: CalibrationOption = None,
    as_json: Json = False,
) -> None:
    """Write a plan as another system's files, or the nearest plan that it can be told, and say what differs."""
    from meshwright.cost.calibration import read_calibration
    from meshwright.export.handing import export_plan
    from meshwright.plan.resolve import read_inputs
    from meshwright.report.handover import handover_blocks, handover_data, printed, write_files
    from meshwright.report.plain import plain_text
    from meshwright.report.screen import show, write

    inputs = read_inputs(plan, model=model, cluster=cluster, recipe=recipe)
    done = export_plan(inputs, to, read_calibration(calibration) if calibration else None)
    wrote = write_files(done.files, output) if output else []
    if output or as_json:
        show(as_json, lambda: handover_data(done), lambda: handover_blocks(done, wrote))
        return
    write(printed(done.files))
    typer.echo(plain_text(handover_blocks(done, [])), err=True, nl=False)


@app.command(
    "import",
    short_help="Read another system's files or launch line as a plan.",
    epilog=_IMPORT_EXAMPLES,
    context_settings={"ignore_unknown_options": True},
)
def import_(
    what: Annotated[list[str], typer.Argument(metavar="FILE|FLAGS...", help="Files, a folder of them, or flags.")],
    *,
    source: Annotated[str, typer.Option("--from", metavar=_FROM, help="The system.")],
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="PATH", help=_FOR)] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    seq: Annotated[Whole, number("--seq", "Positions per sample, where nothing says it.")] = None,
    global_batch: Annotated[Whole, number("--global-batch", "Samples per step, where nothing says it.")] = None,
    devices: Annotated[Whole, number("--devices", "How many of the cluster's it runs on, if not all.")] = None,
    as_json: Json = False,
) -> None:
    """Read what runs in another system today as a plan, its recipe and its model; list what says nothing of these."""
    from meshwright.errors import PlanError
    from meshwright.export.taking import take_in
    from meshwright.export.written import taken_data, taken_facts, write_taken
    from meshwright.report.handover import taken_blocks
    from meshwright.report.screen import show, write

    if cluster is None:
        raise PlanError("--cluster must be given: launch lines do not say which devices they are for")
    found = take_in(
        what,
        source,
        cluster=cluster,
        model=model,
        recipe=recipe,
        sequence=seq,
        global_batch=global_batch,
        devices=devices,
    )
    if output:
        write_taken(found, output, model=model, cluster=cluster, recipe=recipe)
    elif not as_json:
        write(found.inputs.plan.to_yaml())
    show_to = taken_blocks(taken_facts(found, output), found.left, found.notes)
    if output or as_json:
        show(as_json, lambda: taken_data(found), lambda: show_to)
        return
    from meshwright.report.plain import plain_text

    typer.echo(plain_text(show_to), err=True, nl=False)
