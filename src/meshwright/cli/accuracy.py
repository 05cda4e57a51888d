"""How well predictions and measurements agree."""

from typing import Annotated

import typer

from meshwright.cli.base import app
from meshwright.cli.options import CalibrationOption, Json, number
from meshwright.errors import MeshwrightError

_MEASURED = "Files of measured rows; none: those that come with Meshwright."
_DOCS = "Fill in the tables of this document, which says by markers where they go, and print nothing else."
_FITTED_TO = "Rows of these: sources by name, or files of the columns that `validate` reads; none: all that are known."
_WITHOUT = "Leave out a source, its lab and its framework family."
_VALIDATE_EXAMPLES = """Example: meshwright validate

Example: meshwright validate --source hagemann2023 --worst 3"""


@app.command(short_help="Compare predictions with published measurements.", epilog=_VALIDATE_EXAMPLES)
def validate(
    files: Annotated[list[str] | None, typer.Argument(metavar="[CSV]...", help=_MEASURED)] = None,
    *,
    calibration: CalibrationOption = None,
    source: Annotated[list[str] | None, typer.Option("--source", metavar="NAME", help="Its rows alone.")] = None,
    worst: Annotated[int, number("--worst", "Explain so many of the worst rows, part by part.")] = 0,
    docs: Annotated[str | None, typer.Option("--docs", metavar="PATH", help=_DOCS)] = None,
    as_json: Annotated[str | None, typer.Option("--json", metavar="PATH|-", help="Write all figures here.")] = None,
) -> None:
    """Compare predictions with published measurements, source by source. Ctrl-C shows what is done so far."""
    from meshwright.cost.calibration import public_calibration, read_calibration
    from meshwright.report.validate import chosen_rows, show_validation, write_document
    from meshwright.report.validate import validate as score

    if worst < 0:
        raise MeshwrightError(f"--worst: must be at least 0 (got {worst})")
    reached = read_calibration(calibration) if calibration else public_calibration()
    rows = chosen_rows(files or [], source or [])
    if docs:
        typer.echo(f"{docs}: wrote {', '.join(write_document(docs, rows, reached))}")
        return
    found = score(rows, reached)
    show_validation(found, worst, as_json)
    if not found.whole:
        raise typer.Exit(130)


@app.command(
    short_help="Fit what devices reach to measured runs.",
    epilog="Example: meshwright calibrate hagemann2023 llm_foundry -o a100.yaml",
)
def calibrate(
    what: Annotated[list[str] | None, typer.Argument(metavar="[SOURCE|CSV]...", help=_FITTED_TO)] = None,
    *,
    base: Annotated[str | None, typer.Option("--base", metavar="PATH", help="What is not fitted is from here.")] = None,
    without: Annotated[str | None, typer.Option("--without", metavar="SOURCE", help=_WITHOUT)] = None,
    name: Annotated[str, typer.Option("--name", help="The name of the calibration.")] = "fitted",
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="PATH", help="Write it here.")] = None,
    as_json: Json = False,
) -> None:
    """Fit the constants of devices to measured step times, and print them with those that touched a bound."""
    from meshwright.report.calibrate import (
        base_of,
        calibration_blocks,
        calibration_data,
        fit_constants,
        rows_to_fit,
        write_calibration,
    )
    from meshwright.report.screen import show

    found = fit_constants(rows_to_fit(what or [], without), base_of(base, without), name)
    if output:
        write_calibration(found, output)
    show(as_json, lambda: calibration_data(found), lambda: calibration_blocks(found))
