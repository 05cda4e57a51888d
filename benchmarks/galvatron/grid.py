"""Galvatron's dynamic programme over a grid of memory, as its C++ core does it (`csrc/dp_core.cpp`, at cea12ff),
compiled by numba.

`least[v, s]` is the fewest seconds of the layers so far in v MB with the last of them under strategy s. Each layer
takes M S² steps for M rows of one MB. In place: rows are taken from the top, and a row reads lower ones alone.
"""

import time
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from galvatron.formula import Choice, step_seconds
from galvatron.tables import Floats, Task


class Grid(NamedTuple):
    """One programme: its table after the last layer, where each cell came from, and what it took."""

    least: Floats
    """[M, S]"""
    before: NDArray[np.int8]
    """The strategy of the layer before [layers, M, S]."""
    steps: int
    """Inner steps, L M S²."""
    cpu: float
    """Seconds."""


class Solved(NamedTuple):
    """All programmes of one task, and the best of what they found."""

    seconds: float
    """Of a step by Galvatron's formula, infinite where nothing fits."""
    choice: Choice | None
    costs: Floats
    """What the programme minimises, for each embedding strategy and stage [E, P]."""
    steps: int
    """Inner steps of the programmes that differ."""
    cpu: float
    """Seconds: each of them once."""
    cpu_repeated: float
    """As Galvatron runs them: anew for each embedding strategy, which only says in which row to look."""
    steps_repeated: int


@numba.njit(cache=True)
def _fill(least: Floats, before: NDArray[np.int8], memory: NDArray[np.int64], seconds: Floats, change: Floats) -> None:
    layers, rows, kinds = before.shape
    for layer in range(layers):
        for row in range(rows - 1, -1, -1):
            for kind in range(kinds):
                lower = row - memory[kind]
                if lower < 0:
                    least[row, kind] = np.inf
                    before[layer, row, kind] = -1
                    continue
                best, place = np.inf, 0
                for other in range(kinds):
                    found = least[lower, other] + (change[other, kind] if layer > 0 else 0.0)
                    if found < best:
                        best, place = found, other
                least[row, kind] = best + seconds[kind]
                before[layer, row, kind] = place


def fill(layers: int, budget: int, memory: NDArray[np.int64], seconds: Floats, change: Floats) -> Grid:
    """The table of so many equal layers. `memory` and `seconds` by strategy, `change` from a strategy to the next's."""
    kinds = len(seconds)
    least, before = np.zeros((budget + 1, kinds)), np.empty((layers, budget + 1, kinds), dtype=np.int8)
    began = time.process_time()
    _fill(least, before, memory, seconds, change)
    return Grid(least, before, layers * (budget + 1) * kinds**2, time.process_time() - began)


def warm_up() -> None:
    """Compile, or load what was compiled."""
    fill(2, 3, np.ones(2, dtype=np.int64), np.ones(2), np.zeros((2, 2)))


def trace(grid: Grid, memory: NDArray[np.int64], row: int) -> tuple[float, tuple[int, ...] | None]:
    """The least cost in so many MB, and the layers' strategies; none where nothing fits."""
    if row < 0 or not np.isfinite(grid.least[row]).any():
        return np.inf, None
    kind, found = int(grid.least[row].argmin()), list[int]()
    cost = float(grid.least[row, kind])
    for before in grid.before[::-1]:
        found.append(kind)
        kind, row = int(before[row, kind]), row - int(memory[kind])
    return cost, tuple(reversed(found))


def solve(task: Task) -> Solved:
    """What Galvatron does with a task: the programme of each stage for each embedding strategy, and its formula on what
    they found together, whose least is the answer. Programmes of equal stages are run once here, and their time counted
    both ways.
    """
    grids: dict[tuple[int, bytes], Grid] = {}
    costs, found = np.full(task.other.shape, np.inf), list[Choice | None]()
    stages = list(zip(task.stages, task.memory, strict=True))
    for layers, memory in stages:
        key = layers, memory.tobytes()
        if key not in grids:
            grids[key] = fill(layers, task.budget, memory, task.sync, task.change)
    for embed, others in enumerate(task.other):
        traced = [
            trace(grids[layers, memory.tobytes()], memory, task.budget - int(other))
            for (layers, memory), other in zip(stages, others, strict=True)
        ]
        costs[embed] = [cost for cost, _ in traced]
        plans = [plan for _, plan in traced if plan is not None]
        found.append(Choice(embed, tuple(plans)) if len(plans) == len(stages) else None)
    seconds = [np.inf if choice is None else step_seconds(task, choice) for choice in found]
    best = int(np.argmin(seconds))
    repeated = [grids[layers, memory.tobytes()] for layers, memory in stages] * len(task.other)
    return Solved(
        seconds[best],
        found[best],
        costs,
        steps=sum(grid.steps for grid in grids.values()),
        cpu=sum(grid.cpu for grid in grids.values()),
        cpu_repeated=sum(grid.cpu for grid in repeated),
        steps_repeated=sum(grid.steps for grid in repeated),
    )
