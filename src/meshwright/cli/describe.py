"""What there is: models, clusters, this machine, documents."""

from typing import Annotated, Literal

import typer

from meshwright.cli.base import app
from meshwright.cli.options import CLUSTER, Json, model_names, number
from meshwright.errors import MeshwrightError

_MODULE = "A known name, a ModelSpec file, a config.json or its folder, or module:function for a torch module."
Noun = Literal["plan", "model", "cluster", "recipe", "run", "calibration"]


@app.command(short_help="Describe a model.", epilog="Example: meshwright model llama-3.1-70b --seq 8192")
def model(
    what: Annotated[str, typer.Argument(metavar="NAME|PATH", help=_MODULE, autocompletion=model_names)],
    *,
    seq: Annotated[int, number("--seq", "Positions per sample, for the FLOPs, as far as the model reaches.")] = 4096,
    as_json: Json = False,
) -> None:
    """Describe a model: parameters and FLOPs by layer, and what limits its plans."""
    from meshwright.report.model import model_blocks, model_data
    from meshwright.report.screen import show
    from meshwright.trace.target import find_model
    from meshwright.units import MAX_COUNT

    if not 1 <= seq <= MAX_COUNT:
        raise MeshwrightError(f"--seq: must be from 1 to {MAX_COUNT:,} (got {seq})")
    spec = find_model(what)
    show(as_json, lambda: model_data(spec, seq), lambda: model_blocks(spec, seq))


@app.command(short_help="List the models that are known by name.", epilog="Example: meshwright models qwen 7b")
def models(
    pattern: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="Words of a name or family.")] = None,
    as_json: Json = False,
) -> None:
    """List the models that are known by name, with parameters, layers and sources."""
    from meshwright.report.models import models_blocks, models_data
    from meshwright.report.screen import show

    words = " ".join(pattern or [])
    show(as_json, lambda: models_data(words), lambda: models_blocks(words))


@app.command(short_help="Describe a cluster.", epilog="Example: meshwright cluster 4x8xa100-80gb")
def cluster(
    what: Annotated[str, typer.Argument(metavar="SPEC", help=CLUSTER)],
    as_json: Json = False,
) -> None:
    """Describe a cluster: devices, peaks, links, and where each figure is from."""
    from meshwright.cluster.resolve import resolve_cluster
    from meshwright.report.cluster import cluster_blocks, cluster_data
    from meshwright.report.screen import show

    found = resolve_cluster(what)
    show(as_json, lambda: cluster_data(found), lambda: cluster_blocks(found))


@app.command(short_help="List the devices and links that are known.", epilog="Example: meshwright clusters h100")
def clusters(
    pattern: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="Words of a name.")] = None,
    as_json: Json = False,
) -> None:
    """List the devices and links that are known by name, with memory, peaks, usual nodes, prices and sources."""
    from meshwright.report.clusters import clusters_blocks, clusters_data
    from meshwright.report.screen import show

    words = " ".join(pattern or [])
    show(as_json, lambda: clusters_data(words), lambda: clusters_blocks(words))


@app.command(short_help="Say what differs between two plans.", epilog="Example: meshwright diff old.yaml new.yaml")
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A plan file.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    as_json: Json = False,
) -> None:
    """Say what differs between two plans, in a plan's terms. Exit code 0: nothing; 1: something; 2: an error."""
    from meshwright.plan.diff import diff_plans
    from meshwright.plan.spec import Plan
    from meshwright.report.changes import changes_blocks, changes_data
    from meshwright.report.screen import show

    changes = diff_plans(Plan.read(before), Plan.read(after))
    show(as_json, lambda: changes_data(changes), lambda: changes_blocks(changes))
    raise typer.Exit(1 if changes else 0)


@app.command(short_help="Say what this machine has and can run.", epilog="Example: meshwright doctor --json")
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, what the runtime can run, and what is missing with the command that installs it."""
    from meshwright.measure.doctor import examine
    from meshwright.report.doctor import doctor_blocks
    from meshwright.report.screen import show

    found = examine()
    show(as_json, lambda: found, lambda: doctor_blocks(found))


@app.command(short_help="Print a document's JSON Schema.", epilog="Example: meshwright schema plan > plan.schema.json")
def schema(
    noun: Annotated[Noun, typer.Argument(help="The kind of document.")],
    as_json: Annotated[bool, typer.Option("--json", help="Changes nothing: a schema is JSON.")] = False,
) -> None:
    """Print the JSON Schema of a document, for an editor or another program."""
    from meshwright.report.schema import schema_of
    from meshwright.report.screen import show

    show(True, lambda: schema_of(noun), list)
