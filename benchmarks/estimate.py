"""How long estimates take: a pipeline's simulation, whole plans, and plans again under another calibration.

Run `.venv/bin/python benchmarks/estimate.py`. A cold call knows nothing of the schedule or of a model's layers: its
caches are emptied before it. The others know what earlier calls have kept, as those of a search do.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import meshwright as mw
from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.cost.efficiency import tile_wastes
from meshwright.cost.estimate import run_step
from meshwright.cost.order_graph import graph_of
from meshwright.cost.placement import Placement
from meshwright.cost.shares import shares_of
from meshwright.cost.simulation import Link, StageTime, simulate
from meshwright.plan.orders import orders
from meshwright.plan.rules import Inputs

RUNS, COLD_RUNS = 21, 7
CACHES = (orders, graph_of, shares_of, tile_wastes)


class Taken(NamedTuple):
    """Milliseconds of one call."""

    wall: float
    cpu: float
    """Of this process: less than the wall time where others have the cores."""


def simulated(stages: int, micro_batches: int) -> Callable[[], object]:
    """1f1b with a message between neighbours each way."""
    times = [StageTime(forward=1.0, backward=2.0, reduce=0.1, optimizer=0.1)] * stages
    links = [Link(stage, stage + 1, 0.1, 0.1) for stage in range(stages - 1)]
    places = tuple(range(stages))
    return lambda: simulate(orders("1f1b", places, micro_batches), times, links, norm=0.1)


def small() -> Inputs:
    """GPT-2 on eight H100: tp 2, dp 4, 8 micro-batches."""
    model, cluster, recipe = mw.model("gpt2"), mw.cluster("8xh100"), mw.recipe(global_batch=64, sequence=1024)
    return Inputs(mw.uniform_plan(model, cluster, recipe, tp=2, micro_batches=8), model, cluster, recipe)


def large() -> Inputs:
    """Llama 3.1 405B on 16,384 H100: tp 8, pp 16, dp 128, 128 micro-batches."""
    recipe = mw.recipe(global_batch=128 * 128, sequence=8192)
    model, cluster = mw.model("llama-3.1-405b"), mw.cluster("2048x8xh100")
    plan = mw.uniform_plan(model, cluster, recipe, tp=8, pp=16, zero=1, sp=True, micro_batches=128)
    return Inputs(plan, model, cluster, recipe)


def estimated(inputs: Inputs) -> Callable[[], object]:
    """A whole estimate."""
    plan, model, cluster, recipe = inputs.plan, inputs.model, inputs.cluster, inputs.recipe
    return lambda: mw.estimate(plan, model=model, cluster=cluster, recipe=recipe)


def timed_again(inputs: Inputs) -> Callable[[], object]:
    """The step time of a known plan under a calibration that is a new one each time."""
    placement, known = Placement(inputs), public_calibration()
    numbers = itertools.count()

    def another() -> Calibration:
        devices = {
            name: each.model_copy(update={"inner": float(next(numbers))}) for name, each in known.devices.items()
        }
        return known.model_copy(update={"devices": devices})

    run_step(placement)
    return lambda: run_step(placement.with_calibration(another()))


def taken(work: Callable[[], object]) -> Taken:
    """The time of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))


def cold(work: Callable[[], object]) -> Taken:
    """The time of one call that knows nothing yet."""
    for cache in CACHES:
        cache.cache_clear()
    return taken(work)


def main() -> None:
    cases = {
        "simulate 16 stages x 128 micro-batches": simulated(16, 128),
        "simulate 64 stages x 512 micro-batches": simulated(64, 512),
        "estimate GPT-2 on 8 devices": estimated(small()),
        "estimate 405B on 16,384 devices": estimated(large()),
        "time GPT-2 on 8 again": timed_again(small()),
        "time 405B on 16,384 again": timed_again(large()),
    }
    table = Table("", title=f"milliseconds: wall (CPU), {COLD_RUNS} cold runs and {RUNS} others")
    for name in ("cold: least", "cold: median", "least", "median", "most"):
        table.add_column(name, justify="right")
    for name, work in cases.items():
        first, later = ([one(work) for _ in range(runs)] for one, runs in ((cold, COLD_RUNS), (taken, RUNS)))
        shown = ((min, first), (statistics.median, first), (min, later), (statistics.median, later), (max, later))
        table.add_row(
            name, *(f"{of(t.wall for t in all_of):.1f} ({of(t.cpu for t in all_of):.1f})" for of, all_of in shown)
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
