"""What a plan costs, and whether it is sound."""

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
    PlanFile,
    PlanOutput,
    RecipeOption,
    Recompute,
    SeqOption,
    Whole,
    ZeroOption,
    number,
)
from meshwright.plan.words import Schedule

_ORDER = "A table of actions, as torch's pipelining dumps it, in place of the plan's schedule."
_TIMELINE = "Write the simulated step here, for ui.perfetto.dev."
_SCOPE = "What it must be good for: to mean something, to run here, or to be said to another system."
Scope = Literal["meaning", "runtime", "megatron", "torchtitan", "deepspeed", "accelerate"]
_ESTIMATE_EXAMPLES = """Example: meshwright estimate plan.yaml

Example: meshwright estimate --model llama-3-8b --cluster 8xh100 --seq 8192 --global-batch 64 --tp 2 -o plan.yaml"""
_EXIT_CODES = {"fits": 0, "does-not-fit": 1, "bad": 2}
"""What `check` ends with."""


@app.command(short_help="Predict the time and memory of a plan.", epilog=_ESTIMATE_EXAMPLES)
def estimate(
    context: typer.Context,
    plan: Annotated[str | None, typer.Argument(metavar="PLAN", help="A plan file; none: a uniform plan.")] = None,
    *,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    seq: SeqOption = None,
    global_batch: Annotated[Whole, number("--global-batch", "Samples per step, without a recipe.")] = None,
    tp: Annotated[Whole, number("--tp", "Tensor-parallel ways.")] = None,
    pp: Annotated[Whole, number("--pp", "Pipeline-parallel ways.")] = None,
    cp: Annotated[Whole, number("--cp", "Ring context-parallel ways.")] = None,
    ulysses: Annotated[Whole, number("--ulysses", "All-to-all sequence-parallel ways.")] = None,
    ep: Annotated[Whole, number("--ep", "Expert-parallel ways.")] = None,
    etp: Annotated[Whole, number("--etp", "Tensor-parallel ways inside the experts, if not --tp.")] = None,
    dp: Annotated[Whole, number("--dp", "Data-parallel ways, if not all that is left.")] = None,
    zero: ZeroOption = None,
    shard: Annotated[Whole, number("--shard", "Ranks that --zero shards over; the others are replicas.")] = None,
    micro_batch: Annotated[Whole, number("--micro-batch", "Samples of a micro-batch for each dp rank.")] = None,
    micro_batches: MicroBatchesOption = None,
    recompute: Annotated[Recompute | None, typer.Option(help="What backward computes again.")] = None,
    sp: Annotated[bool, typer.Option("--sp", help="Sequence-parallel activations between tp matrices.")] = False,
    virtual: Annotated[Whole, number("--virtual", "Stages on each pipeline rank, interleaved.")] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="The pipeline's schedule.")] = None,
    kernels: KernelsOption = None,
    output: PlanOutput = None,
    order_table: Annotated[str | None, typer.Option("--order", metavar="CSV", help=_ORDER)] = None,
    timeline: Annotated[str | None, typer.Option("--timeline", metavar="PATH", help=_TIMELINE)] = None,
    calibration: CalibrationOption = None,
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


@app.command(short_help="Say whether a plan is sound and fits.", epilog="Example: meshwright check plan.yaml")
def check(
    plan: PlanFile,
    *,
    scope: Annotated[Scope, typer.Option(help=_SCOPE)] = "meaning",
    model: ModelOption = None,
    cluster: ClusterOption = None,
    recipe: RecipeOption = None,
    calibration: CalibrationOption = None,
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
