"""The command line: verbs that read their arguments, ask the library, and show the answer.

Each verb imports what it needs, so that every one starts quickly.
"""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Literal

import typer
from typer.models import OptionInfo

from meshwright.errors import MeshwrightError
from meshwright.plan.words import Kernels, Schedule
from meshwright.version import __version__

app = typer.Typer(
    name="meshwright",
    help="Finds the fastest way to spread a training over devices, and says what it will cost and why.",
    epilog="Every verb takes --json, and says more with --help. Exit code 2: something you asked for is wrong.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_MODEL = "A known name, a ModelSpec file, or a config.json or its folder."
_MODULE = "A known name, a ModelSpec file, a config.json or its folder, or module:function for a torch module."
_ZERO = "What dp, cp and ulysses shard: 1 optimizer states, 2 gradients too, 3 parameters too."
_ORDER = "A table of actions, as torch's pipelining dumps it, in place of the plan's schedule."
_SEQUENCE = "Positions per sample, without a recipe; by stream where a model has several."
_TIMELINE = "Write the simulated step here, for ui.perfetto.dev."
_FITTED_TO = "Rows of these: sources by name, or files of the columns that `validate` reads; none: all that are known."
_WITHOUT = "Leave out a source, its lab and its framework family."
_CALIBRATION = "What devices and links reach of their peaks; ideal: all of them."
_CLUSTER = "A shorthand (8xh100, 4x8xa100-80gb:ib400, cpu:4, local) or a file."


def _model_names(typed: str) -> list[str]:
    """Names for the shell to complete."""
    from meshwright.model.resolve import catalog_names

    return [name for name in catalog_names() if name.startswith(typed)]


def _number(name: str, text: str) -> OptionInfo:
    """An option that takes a whole number."""
    option: OptionInfo = typer.Option(name, metavar="N", help=text)
    return option


_ESTIMATE_EXAMPLES = """Example: meshwright estimate plan.yaml

Example: meshwright estimate --model llama-3-8b --cluster 8xh100 --seq 8192 --global-batch 64 --tp 2 -o plan.yaml"""
_PLAN_EXAMPLES = """Example: meshwright plan --model llama-3.1-70b --cluster 8x8xh100 --seq 8192 --global-batch 512

Example: meshwright plan --model llama-3.1-8b --cluster 8xh100 --seq 8192 --global-batch 64 --tp 2 -o plan.yaml"""
_FORBID = "What no layer may do: tp, pp, cp, ulysses, ep, zero1, zero2, zero3, hsdp, full, selective; may be repeated."
_LIMIT = "Of a device, where it is less than it has: 60GB, 60GiB."
_GAP = "End when nothing can be faster by more than this share."
_BATCHES = "Samples per step, without a recipe; of a range, the batch with most tokens per second."
_FRONT = "Search under smaller memory limits too, each within the time limit, for what less memory costs."
_NEAR = "Begin from this plan, for what it is for, and change a few choices of it; each with its gain."
_SCOPE = "What it must be good for: to mean something, to run here, or to be said to another system."
_SYSTEMS = "any|runtime|megatron|torchtitan|deepspeed"
_OBJECTIVE = "The shortest step; most tokens/s and device; fewest devices that are fast enough; least money a token."
_VALIDATE_EXAMPLES = """Example: meshwright validate

Example: meshwright validate --source hagemann2023 --worst 3"""
_MEASURED = "Files of measured rows; none: those that come with Meshwright."
_DOCS = "Fill in the tables of this document, which says by markers where they go, and print nothing else."
Scope = Literal["meaning", "runtime", "megatron", "torchtitan", "deepspeed"]
Objective = Literal["time", "tokens-per-device", "devices", "money"]
Noun = Literal["plan", "model", "cluster", "recipe", "calibration"]
Recompute = Literal["none", "full", "selective"]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME|PATH", help=_MODEL, autocompletion=_model_names)
]
ClusterOption = Annotated[str | None, typer.Option("--cluster", metavar="SPEC", help=_CLUSTER)]
RecipeOption = Annotated[str | None, typer.Option("--recipe", metavar="PATH", help="A recipe file.")]
Whole = int | None
_EXIT_CODES = {"fits": 0, "does-not-fit": 1, "bad": 2}
"""What `check` ends with."""
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and exit. One message and exit code 2 for what a user can fix; 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments, prog_name="meshwright")
    except MeshwrightError as error:
        typer.echo(error, err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(short_help="Describe a model.", epilog="Example: meshwright model llama-3.1-70b --seq 8192")
def model(
    what: Annotated[str, typer.Argument(metavar="NAME|PATH", help=_MODULE, autocompletion=_model_names)],
    *,
    seq: Annotated[int, _number("--seq", "Positions per sample, for the FLOPs, as far as the model reaches.")] = 4096,
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
    what: Annotated[str, typer.Argument(metavar="SPEC", help=_CLUSTER)],
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


@app.command(short_help="Predict the time and memory of a plan.", epilog=_ESTIMATE_EXAMPLES)
def estimate(
    context: typer.Context,
    plan: Annotated[str | None, typer.Argument(metavar="PLAN", help="A plan file; none: a uniform plan.")] = None,
    *,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    seq: Annotated[str | None, typer.Option("--seq", metavar="N|STREAM=N,...", help=_SEQUENCE)] = None,
    global_batch: Annotated[Whole, _number("--global-batch", "Samples per step, without a recipe.")] = None,
    tp: Annotated[Whole, _number("--tp", "Tensor-parallel ways.")] = None,
    pp: Annotated[Whole, _number("--pp", "Pipeline-parallel ways.")] = None,
    cp: Annotated[Whole, _number("--cp", "Ring context-parallel ways.")] = None,
    ulysses: Annotated[Whole, _number("--ulysses", "All-to-all sequence-parallel ways.")] = None,
    ep: Annotated[Whole, _number("--ep", "Expert-parallel ways.")] = None,
    etp: Annotated[Whole, _number("--etp", "Tensor-parallel ways inside the experts, if not --tp.")] = None,
    dp: Annotated[Whole, _number("--dp", "Data-parallel ways, if not all that is left.")] = None,
    zero: Annotated[Whole, typer.Option("--zero", metavar="0|1|2|3", help=_ZERO)] = None,
    shard: Annotated[Whole, _number("--shard", "Ranks that --zero shards over; the others are replicas.")] = None,
    micro_batch: Annotated[Whole, _number("--micro-batch", "Samples of a micro-batch for each dp rank.")] = None,
    micro_batches: Annotated[Whole, _number("--micro-batches", "A count, in place of --micro-batch.")] = None,
    recompute: Annotated[Recompute | None, typer.Option(help="What backward computes again.")] = None,
    sp: Annotated[bool, typer.Option("--sp", help="Sequence-parallel activations between tp matrices.")] = False,
    virtual: Annotated[Whole, _number("--virtual", "Stages on each pipeline rank, interleaved.")] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="The pipeline's schedule.")] = None,
    kernels: Annotated[Kernels | None, typer.Option(help="What the implementation fuses and keeps.")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="PATH", help="Write the plan here.")] = None,
    order_table: Annotated[str | None, typer.Option("--order", metavar="CSV", help=_ORDER)] = None,
    timeline: Annotated[str | None, typer.Option("--timeline", metavar="PATH", help=_TIMELINE)] = None,
    calibration: Annotated[str | None, typer.Option("--calibration", metavar="PATH|ideal", help=_CALIBRATION)] = None,
    as_json: Json = False,
) -> None:
    """Predict the time and memory of a plan, or of the uniform plan that the options describe."""
    from meshwright.cost.calibration import read_calibration
    from meshwright.cost.estimate import estimate_plan
    from meshwright.cost.order_tables import read_orders
    from meshwright.report.estimate import estimate_blocks, estimate_data
    from meshwright.report.screen import show
    from meshwright.request import Named, requested

    inputs = requested(plan, Named(model, cluster, recipe), context.params, output)
    orders = read_orders(order_table, inputs.plan) if order_table else None
    found = estimate_plan(inputs, read_calibration(calibration) if calibration else None, orders=orders)
    if timeline:
        from meshwright.report.timeline import trace, write_trace

        write_trace(timeline, trace(found))
    show(as_json, lambda: estimate_data(inputs, found), lambda: estimate_blocks(inputs, found))


@app.command(short_help="Find the fastest plan that fits.", epilog=_PLAN_EXAMPLES)
def plan(
    context: typer.Context,
    *,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    seq: Annotated[str | None, typer.Option("--seq", metavar="N|STREAM=N,...", help=_SEQUENCE)] = None,
    global_batch: Annotated[
        str | None, typer.Option("--global-batch", metavar="N|LO..HI[:STEP]", help=_BATCHES)
    ] = None,
    objective: Annotated[Objective, typer.Option(help=_OBJECTIVE)] = "time",
    within: Annotated[str | None, typer.Option("--within", metavar="TIME", help="What a step may take: 30s.")] = None,
    at_least: Annotated[
        float | None, typer.Option("--at-least", metavar="N", help="Tokens per second that are wanted: 1e6.")
    ] = None,
    devices: Annotated[
        Whole, _number("--devices", "Use so many of the cluster's devices; the others stay idle.")
    ] = None,
    tp: Annotated[Whole, _number("--tp", "Fix the tensor-parallel ways.")] = None,
    pp: Annotated[Whole, _number("--pp", "Fix the pipeline-parallel ways.")] = None,
    cp: Annotated[Whole, _number("--cp", "Fix the ring context-parallel ways.")] = None,
    ulysses: Annotated[Whole, _number("--ulysses", "Fix the all-to-all sequence-parallel ways.")] = None,
    ep: Annotated[Whole, _number("--ep", "Fix the expert-parallel ways.")] = None,
    etp: Annotated[Whole, _number("--etp", "Fix the tensor-parallel ways inside the experts.")] = None,
    dp: Annotated[Whole, _number("--dp", "Fix the data-parallel ways.")] = None,
    zero: Annotated[Whole, typer.Option("--zero", metavar="0|1|2|3", help=_ZERO)] = None,
    micro_batch: Annotated[
        Whole, _number("--micro-batch", "Fix the samples of a micro-batch for each dp rank.")
    ] = None,
    micro_batches: Annotated[Whole, _number("--micro-batches", "A count, in place of --micro-batch.")] = None,
    virtual: Annotated[Whole, _number("--virtual", "Fix the stages on each pipeline rank.")] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="Fix it; none: 1f1b and interleaved.")] = None,
    recompute: Annotated[Recompute | None, typer.Option(help="Fix it for all numbered layers.")] = None,
    forbid: Annotated[list[str] | None, typer.Option("--forbid", metavar="SPLIT|STATE|RECOMPUTE", help=_FORBID)] = None,
    memory_limit: Annotated[str | None, typer.Option("--memory-limit", metavar="SIZE", help=_LIMIT)] = None,
    front: Annotated[bool, typer.Option("--front", help=_FRONT)] = False,
    near: Annotated[str | None, typer.Option("--near", metavar="PLAN", help=_NEAR)] = None,
    changes: Annotated[Whole, _number("--changes", "Choices in which the answer may differ from --near; 3.")] = None,
    scope: Annotated[str, typer.Option("--for", metavar=_SYSTEMS, help="What must be able to run it.")] = "any",
    kernels: Annotated[Kernels | None, typer.Option(help="What the implementation fuses and keeps.")] = None,
    gap: Annotated[float, typer.Option("--gap", metavar="SHARE", help=_GAP)] = 0.01,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="Answer with the best by then.")
    ] = 10,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="PATH", help="Write the plan here.")] = None,
    calibration: Annotated[str | None, typer.Option("--calibration", metavar="PATH|ideal", help=_CALIBRATION)] = None,
    as_json: Json = False,
) -> None:
    """Find the fastest plan that fits, with a proof of how far it can be from the best. Ctrl-C answers at once."""
    from meshwright.cost.calibration import read_calibration
    from meshwright.report.plan import clear_line, plan_blocks, plan_data, progress_line
    from meshwright.report.screen import show
    from meshwright.request import Named, question_of, with_sources
    from meshwright.search.sweep import find

    named = Named(model, cluster, recipe)
    problem = question_of(named, context.params)
    reached = read_calibration(calibration) if calibration else None
    try:
        answer = find(problem, reached, progress_line())
    finally:
        clear_line()
    if output:
        with_sources(answer.plan, named, output).write(output)
    show(as_json, lambda: plan_data(answer), lambda: plan_blocks(answer))


@app.command(short_help="Say whether a plan is sound and fits.", epilog="Example: meshwright check plan.yaml")
def check(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    scope: Annotated[Scope, typer.Option(help=_SCOPE)] = "meaning",
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    calibration: Annotated[str | None, typer.Option("--calibration", metavar="PATH|ideal", help=_CALIBRATION)] = None,
    groups: Annotated[bool, typer.Option("--groups", help="List the ranks of every process group too.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether a plan is sound and fits in memory. Exit code 0: yes; 1: it does not fit; 2: it is bad."""
    from meshwright.cost.calibration import read_calibration
    from meshwright.plan.resolve import read_inputs
    from meshwright.report.check import check_blocks, check_data, judge
    from meshwright.report.screen import show

    inputs = read_inputs(plan, model=model, cluster=cluster, recipe=recipe)
    verdict = judge(inputs, scope, read_calibration(calibration) if calibration else None)
    show(as_json, lambda: check_data(verdict, groups), lambda: check_blocks(verdict, groups))
    raise typer.Exit(_EXIT_CODES[verdict.judgement])


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


@app.command(short_help="Compare predictions with published measurements.", epilog=_VALIDATE_EXAMPLES)
def validate(
    files: Annotated[list[str] | None, typer.Argument(metavar="[CSV]...", help=_MEASURED)] = None,
    *,
    calibration: Annotated[str | None, typer.Option("--calibration", metavar="PATH|ideal", help=_CALIBRATION)] = None,
    source: Annotated[list[str] | None, typer.Option("--source", metavar="NAME", help="Its rows alone.")] = None,
    worst: Annotated[int, _number("--worst", "Explain so many of the worst rows, part by part.")] = 0,
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
