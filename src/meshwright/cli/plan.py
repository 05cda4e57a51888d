"""Which plan is best."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from meshwright.cli.base import app
from meshwright.cli.options import (
    CalibrationOption,
    ClusterOption,
    Json,
    KernelsOption,
    MicroBatchesOption,
    ModelOption,
    PlanOutput,
    RecipeOption,
    Recompute,
    SeqOption,
    Whole,
    ZeroOption,
    number,
)
from meshwright.plan.words import Schedule

_FORBID = (
    "What no layer may do: tp, pp, cp, ulysses, ep, zero1, zero2, zero3, hsdp, unlike, full, selective; repeatable."
)
_LIMIT = "Of a device, where it is less than it has: 60GB, 60GiB."
_GAP = "End when nothing can be faster by more than this share."
_BATCHES = "Samples per step, without a recipe; of a range, the batch with most tokens per second."
_FRONT = "Search under smaller memory limits too, each within the time limit, for what less memory costs."
_NEAR = "Begin from this plan, for what it is for, and change a few choices of it; each with its gain."
_SYSTEMS = "any|runtime|megatron|torchtitan|deepspeed|accelerate"
_OBJECTIVE = "The shortest step; most tokens/s and device; fewest devices that are fast enough; least money a token."
_MOST_PROCESSES = 8
_PROCESSES = "That share the search; none: one a core, of 8 at most. The answer is the same."
Objective = Literal["time", "tokens-per-device", "devices", "money"]
_PLAN_EXAMPLES = """Example: meshwright plan --model llama-3.1-70b --cluster 8x8xh100 --seq 8192 --global-batch 512

Example: meshwright plan --model llama-3.1-8b --cluster 8xh100 --seq 8192 --global-batch 64 --tp 2 -o plan.yaml"""


@app.command(short_help="Find the fastest plan that fits.", epilog=_PLAN_EXAMPLES)
def plan(
    context: typer.Context,
    *,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    seq: SeqOption = None,
    global_batch: Annotated[
        str | None, typer.Option("--global-batch", metavar="N|LO..HI[:STEP]", help=_BATCHES)
    ] = None,
    objective: Annotated[Objective, typer.Option(help=_OBJECTIVE)] = "time",
    within: Annotated[str | None, typer.Option("--within", metavar="TIME", help="What a step may take: 30s.")] = None,
    at_least: Annotated[
        float | None, typer.Option("--at-least", metavar="N", help="Tokens per second that are wanted: 1e6.")
    ] = None,
    devices: Annotated[
        Whole, number("--devices", "Use so many of the cluster's devices; the others stay idle.")
    ] = None,
    tp: Annotated[Whole, number("--tp", "Fix the tensor-parallel ways.")] = None,
    pp: Annotated[Whole, number("--pp", "Fix the pipeline-parallel ways.")] = None,
    cp: Annotated[Whole, number("--cp", "Fix the ring context-parallel ways.")] = None,
    ulysses: Annotated[Whole, number("--ulysses", "Fix the all-to-all sequence-parallel ways.")] = None,
    ep: Annotated[Whole, number("--ep", "Fix the expert-parallel ways.")] = None,
    etp: Annotated[Whole, number("--etp", "Fix the tensor-parallel ways inside the experts.")] = None,
    dp: Annotated[Whole, number("--dp", "Fix the data-parallel ways.")] = None,
    zero: ZeroOption = None,
    micro_batch: Annotated[Whole, number("--micro-batch", "Fix the samples of a micro-batch for each dp rank.")] = None,
    micro_batches: MicroBatchesOption = None,
    virtual: Annotated[Whole, number("--virtual", "Fix the stages on each pipeline rank.")] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="Fix it; none: 1f1b and interleaved.")] = None,
    recompute: Annotated[Recompute | None, typer.Option(help="Fix it for all numbered layers.")] = None,
    forbid: Annotated[list[str] | None, typer.Option("--forbid", metavar="SPLIT|STATE|RECOMPUTE", help=_FORBID)] = None,
    memory_limit: Annotated[str | None, typer.Option("--memory-limit", metavar="SIZE", help=_LIMIT)] = None,
    front: Annotated[bool, typer.Option("--front", help=_FRONT)] = False,
    near: Annotated[str | None, typer.Option("--near", metavar="PLAN", help=_NEAR)] = None,
    changes: Annotated[Whole, number("--changes", "Choices in which the answer may differ from --near; 3.")] = None,
    scope: Annotated[str, typer.Option("--for", metavar=_SYSTEMS, help="What must be able to run it.")] = "any",
    kernels: KernelsOption = None,
    gap: Annotated[float, typer.Option("--gap", metavar="SHARE", help=_GAP)] = 0.01,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="Answer with the best by then.")
    ] = 10,
    processes: Annotated[Whole, number("--processes", _PROCESSES)] = None,
    output: PlanOutput = None,
    calibration: CalibrationOption = None,
    as_json: Json = False,
) -> None:
    """Find the fastest plan that fits, with a proof of how far it can be from the best. Ctrl-C answers at once."""
    with _seldom_collected():
        from meshwright.cluster.local import usable_cores
        from meshwright.cost.calibration import read_calibration
        from meshwright.report.plan import clear_line, plan_blocks, plan_data, progress_line
        from meshwright.report.screen import show
        from meshwright.request import Named, question_of, with_sources
        from meshwright.search.sweep import find

        named = Named(model, cluster, recipe)
        shared = {"processes": processes or min(usable_cores(), _MOST_PROCESSES)}
        problem = question_of(named, context.params | shared)
        reached = read_calibration(calibration) if calibration else None
        try:
            answer = find(problem, reached, progress_line())
        finally:
            clear_line()
        if output:
            with_sources(answer.plan, named, output).write(output)
        show(as_json, lambda: plan_data(answer), lambda: plan_blocks(answer))


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Nearly all that a search makes lives as long as it does: looking for garbage in it takes a tenth of the time."""
    known = gc.get_threshold()
    gc.set_threshold(100 * known[0], *known[1:])
    try:
        yield
    finally:
        gc.set_threshold(*known)
