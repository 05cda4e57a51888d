"""Training."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.base import app
from meshwright.cli.options import INSTALL, Json

if TYPE_CHECKING:
    from meshwright.recipe.run import Run
    from meshwright.report.train import Screen
    from meshwright.train.job import Job

_OVERRIDES = "Fields of the run in place of the file's: steps=200, recipe.seed=7, plan=other.yaml."
_EXAMPLES = """Example: meshwright train run.yaml

Example: meshwright train run.yaml cluster=cpu:4 steps=200 logging.every=1

Example: torchrun --nproc-per-node 8 -m meshwright train run.yaml"""
_STOPPED = 130
"""The exit code of a run that was asked to stop, and saved: that of Ctrl-C."""


@app.command(short_help="Train a model under a plan.", epilog=_EXAMPLES)
def train(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run file: model, recipe, data, steps and the rest.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help=_OVERRIDES)] = None,
    as_json: Json = False,
) -> None:
    """Train a model under a plan, the fastest that is found where none is given; go on where its folder has a
    checkpoint. Under torchrun or srun it runs on their processes, else on its own. Ctrl-C saves first.
    """
    from meshwright.errors import MeshwrightError

    try:
        from meshwright.train.launch import launched
    except ImportError as error:
        raise MeshwrightError(f"training needs torch, which is not here ({error}); {INSTALL}") from None
    from meshwright.cli.job import read_run
    from meshwright.report.train import Screen

    place, found = launched(), read_run(run, overrides or [])
    with Screen(found, as_json=as_json) as screen:
        if place is None:
            from meshwright.train.local import run_locally

            outcome = run_locally(_resolved(found, screen, None), screen.tell)
        else:
            from meshwright.train.torchrun import run_launched

            try:
                outcome = run_launched(
                    place, found.supervision.patience, lambda: _resolved(found, screen, place.size), screen.tell
                )
            except MeshwrightError:
                if place.rank == 0:
                    raise
                sys.exit(2)  # rank 0 says it, and this rank's log has it
    if outcome.stopped:
        sys.exit(_STOPPED)


def _resolved(run: "Run", screen: "Screen", devices: int | None) -> "Job":
    """The job of a run, shown and kept in its folder."""
    from meshwright.cli.job import job_of, write_resolved
    from meshwright.report.plan import clear_line, progress_line

    try:
        job = job_of(run, devices=devices, progress=progress_line())
    finally:
        clear_line()
    write_resolved(job)
    screen.begin(job)
    return job
