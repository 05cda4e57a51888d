"""How long estimates take: a pipeline's simulation, and a whole plan for 16,384 devices.

Run `.venv/bin/python benchmarks/estimate.py`. The first run makes the schedule's orders and graph, the later ones know
them.
"""

import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

import meshwright as mw
from meshwright.cost.order_graph import graph_of
from meshwright.cost.orders import orders
from meshwright.cost.simulation import Link, StageTime, simulate

RUNS = 21


def simulated(stages: int, micro_batches: int) -> Callable[[], object]:
    """1f1b with a message between neighbours each way."""
    times = [StageTime(forward=1.0, backward=2.0, reduce=0.1, optimizer=0.1)] * stages
    links = [Link(stage, stage + 1, 0.1, 0.1) for stage in range(stages - 1)]
    places = tuple(range(stages))
    return lambda: simulate(orders("1f1b", places, micro_batches), times, links, norm=0.1)


def whole_plan() -> Callable[[], object]:
    """Llama 3.1 405B on 16,384 H100: tp 8, pp 16, dp 128, 128 micro-batches."""
    recipe = mw.recipe(global_batch=128 * 128, sequence=8192)
    model, cluster = mw.model("llama-3.1-405b"), mw.cluster("2048x8xh100")
    plan = mw.uniform_plan(model, cluster, recipe, tp=8, pp=16, zero=1, sp=True, micro_batches=128)
    return lambda: mw.estimate(plan, model=model, cluster=cluster, recipe=recipe)


def milliseconds(work: Callable[[], object]) -> float:
    """The wall time of one call."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    cases = {
        "simulate 16 stages x 128 micro-batches": simulated(16, 128),
        "simulate 64 stages x 512 micro-batches": simulated(64, 512),
        "estimate 405B on 16,384 devices": whole_plan(),
    }
    table = Table("", title=f"milliseconds, {RUNS} runs", caption="first: nothing known of the schedule")
    for name in ("first", "min", "median", "max"):
        table.add_column(name, justify="right")
    for name, work in cases.items():
        orders.cache_clear()
        graph_of.cache_clear()
        first = milliseconds(work)
        times = [milliseconds(work) for _ in range(RUNS)]
        table.add_row(name, *(f"{t:.1f}" for t in (first, min(times), statistics.median(times), max(times))))
    Console().print(table)


if __name__ == "__main__":
    main()
