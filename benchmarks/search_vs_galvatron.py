"""Our frontiers and Galvatron's dynamic programme over a grid of memory, side by side on Galvatron's own cost tables.

Run `.venv/bin/python benchmarks/search_vs_galvatron.py`, with numba (the extra `benchmark`); it takes ten minutes of a
processor. For each setting, in one run:

* the programme in numba (`galvatron/grid.py`), which has to come to Galvatron's seconds on every task, and ours
  (`galvatron/ours.py`), in pairs: processor seconds. The programme counts once for each table; Galvatron runs it anew
  for each embedding strategy, which is printed beside it;
* the least of Galvatron's formula by an integer programme (`galvatron/programme.py`);
* the simulated seconds of Galvatron's answer and of ours (`galvatron/events.py`).

Exits with 1 where one of the claims printed at the end does not hold.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from galvatron.events import simulated_seconds
from galvatron.formula import Choice
from galvatron.grid import Solved, solve, warm_up
from galvatron.ours import Answer, by_events, by_formula
from galvatron.programme import optimum
from galvatron.tables import SETTINGS, Task, load, published

RUNS = 3
STEP_NS, EACH, TOTAL = 4.0, 30.0, 100.0
"""Limits: nanoseconds of the programme's inner step; the least ratio of processor seconds, of each setting and of
all."""
EQUAL = 1e-9
console = Console(width=150)


class Paired(NamedTuple):
    """Processor seconds of one run of both."""

    once: float
    repeated: float
    ours: float


class Compared(NamedTuple):
    """One setting."""

    name: str
    tasks: Sequence[Task]
    theirs: list[Solved]
    """Task by task."""
    ours: Answer
    simulated: Answer
    """Our best under simulation."""
    simulated_cpu: float
    least: tuple[float, float]
    """Samples a second of the integer programme: of its plan, and the bound."""
    programme_cpu: float
    runs: list[Paired]

    @property
    def place(self) -> int:
        """The task of Galvatron's answer."""
        return int(np.argmax([task.batch / found.seconds for task, found in zip(self.tasks, self.theirs, strict=True)]))

    @property
    def rate(self) -> float:
        """Samples a second of Galvatron's answer, by its formula."""
        return self.tasks[self.place].batch / self.theirs[self.place].seconds

    def run(self, answer: Answer | None = None) -> float:
        """Samples a second of Galvatron's answer, or of one of ours, under simulation."""
        task = self.tasks[self.place if answer is None else answer.place]
        choice = self.theirs[self.place].choice if answer is None else answer.choice
        return task.batch / simulated_seconds(task, choice) if choice else 0.0

    @property
    def cpu(self) -> Paired:
        """Medians of the runs."""
        return Paired(*(statistics.median(column) for column in zip(*self.runs, strict=True)))

    @property
    def ratio(self) -> float:
        """Processor seconds of the programme over ours: the median of pairs."""
        return statistics.median(run.once / run.ours for run in self.runs)

    @property
    def ratio_repeated(self) -> float:
        """The same as Galvatron runs it."""
        return statistics.median(run.repeated / run.ours for run in self.runs)

    @property
    def step_ns(self) -> float:
        """Nanoseconds of an inner step."""
        return 1e9 * self.cpu.once / sum(found.steps for found in self.theirs)

    @property
    def error(self) -> float:
        """The largest relative difference to what Galvatron wrote down, over tasks: of the seconds of a step, and of
        what each programme found."""
        found = [0.0]
        for task, solved in zip(self.tasks, self.theirs, strict=True):
            found.append(_apart(np.array(solved.seconds), np.array(min(task.steps, default=np.inf))))
            found.append(_apart(solved.costs, task.costs))
        return max(found)


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """The largest relative difference; infinite where only one of two is finite."""
    if not (np.isfinite(one) == np.isfinite(other)).all():
        return np.inf
    finite = np.isfinite(one)
    return float(np.abs(one[finite] / other[finite] - 1).max(initial=0.0))


def compare(name: str, runs: int) -> Compared:
    """All of one setting."""
    tasks, pairs = load(name), list[Paired]()
    for _ in range(runs):
        theirs = [solve(task) for task in tasks]
        began = time.process_time()
        ours = by_formula(tasks)
        took = time.process_time() - began
        pairs.append(Paired(sum(each.cpu for each in theirs), sum(each.cpu_repeated for each in theirs), took))
    began = time.process_time()
    simulated = by_events(tasks)
    took = time.process_time() - began
    proofs = [(task.batch, optimum(task)) for task in tasks]
    least = max(batch / each.seconds for batch, each in proofs), max(batch / each.bound for batch, each in proofs)
    return Compared(name, tasks, theirs, ours, simulated, took, least, sum(each.cpu for _, each in proofs), pairs)


def claims(rows: Sequence[Compared]) -> dict[str, bool]:
    """What is claimed, and whether it holds; the ratio in total where all settings are run."""
    answers = {row.name: published(row.name)["predicted_throughput_samples_s"] for row in rows}
    total = sum(row.cpu.once for row in rows) / sum(row.cpu.ours for row in rows)
    held = {
        "the programme comes to Galvatron's figures on every task": [row.error <= EQUAL for row in rows],
        "its answers are those that Galvatron gave": [abs(row.rate / answers[row.name] - 1) <= EQUAL for row in rows],
        f"its inner step takes at most {STEP_NS:g} ns": [row.step_ns <= STEP_NS for row in rows],
        "our plan is as good or better under its formula": [_at_least(row.ours.rate, row.rate) for row in rows],
        "no plan is better, says the integer programme": [_at_least(row.ours.rate, row.least[1]) for row in rows],
        "our plan is as fast or faster when it runs": [_at_least(row.simulated.rate, row.run()) for row in rows],
        f"processor seconds: {EACH:g} times as many on each setting": [row.ratio >= EACH for row in rows],
    }
    if len(rows) == len(SETTINGS):
        held[f"processor seconds: {TOTAL:g} times as many in total ({total:.0f})"] = [total >= TOTAL]
    return {claim: all(holds) for claim, holds in held.items()}


def _at_least(one: float, other: float) -> bool:
    return one >= other * (1 - EQUAL)


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Names on the left, figures on the right."""
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    return table


def gain(one: float, other: float) -> str:
    """By how much more, without the sign of what rounding leaves."""
    return f"{round(one / other - 1, 6) + 0.0:.2%}"


def formula_row(row: Compared) -> tuple[str, ...]:
    """Its own objective."""
    return (
        row.name, str(len(row.tasks)), f"{row.rate:.4f}", f"{row.ours.rate:.4f}", gain(row.ours.rate, row.rate),
        f"{row.least[0]:.4f}", f"{abs(row.least[1] / row.ours.rate - 1):.0e}", f"{row.programme_cpu:.1f}",
    )  # fmt: skip


def cpu_row(row: Compared) -> tuple[str, ...]:
    """What it took."""
    return (
        row.name, f"{row.step_ns:.2f}", f"{row.cpu.once:.1f}", f"{row.cpu.repeated:.1f}", f"{1e3 * row.cpu.ours:.0f}",
        f"{row.ratio:.0f}", f"{row.ratio_repeated:.0f}", f"{row.ours.solved}", f"{published(row.name)['cpu_s']:.0f}",
    )  # fmt: skip


def events_row(row: Compared) -> tuple[str, ...]:
    """When they run."""
    return (
        row.name, f"{row.rate:.3f}", f"{row.run():.3f}", f"{row.run(row.ours):.3f}", f"{row.simulated.rate:.3f}",
        gain(row.simulated.rate, row.run()), f"{row.simulated.bound / row.simulated.rate - 1:.2%}",
        f"{1e3 * row.simulated_cpu:.0f}",
    )  # fmt: skip


def plan_of(task: Task, choice: Choice) -> str:
    """Layers of each strategy, stage by stage."""
    counts = (sorted(Counter(stage).items()) for stage in choice.layers)
    stages = (", ".join(f"{count} x {task.names[kind]}" for kind, count in stage) for stage in counts)
    return f"micro-batches {task.micro_batches}: {' | '.join(stages)}"


TABLES = {
    "samples a second by Galvatron's formula": (
        ("setting", "tasks", "Galvatron's", "ours", "gain", "integer programme", "its bound - ours", "its CPU, s"),
        formula_row,
    ),
    "processor seconds, medians of pairs": (
        (
            "setting",
            "ns a step",
            "programme, s",
            "as Galvatron, s",
            "ours, ms",
            "ratio",
            "as Galvatron",
            "solved",
            "C++, s",
        ),
        cpu_row,
    ),
    "samples a second under simulation": (
        ("setting", "formula", "Galvatron's", "ours by formula", "ours", "gain", "bound - ours", "CPU, ms"),
        events_row,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=SETTINGS, help=f"of {', '.join(SETTINGS)}; all by default")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"pairs of each setting ({RUNS})")
    asked = parser.parse_args()
    warm_up()
    by_formula(load(min(SETTINGS, key=lambda name: len(load(name)))))
    rows: list[Compared] = []
    for name in asked.settings:
        console.log(name)
        rows.append(compare(name, asked.runs))
    for title, (columns, row_of) in TABLES.items():
        console.print(table_of(title, columns, [row_of(row) for row in rows]))
    for row in rows:
        for title, answer in (("by formula", row.ours), ("under simulation", row.simulated)):
            if answer.choice is not None:
                console.print(f"{row.name}, ours {title}: {plan_of(row.tasks[answer.place], answer.choice)}")
    held = claims(rows)
    for claim, holds in held.items():
        console.print(f"{'holds' if holds else 'FAILS'}: {claim}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
