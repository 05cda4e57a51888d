"""The least of Galvatron's formula, by an integer programme that knows nothing of our search: how many layers of each
stage take which strategy, under the memory limit. HiGHS solves it to no gap.

The formula counts no change between neighbours, and layers are equal: counts say as much as a strategy for each layer.
Its maxima become rows, for it is convex in the seconds of the stages:

    run  >= sum(c) + (m - 1) c_last                         the pipeline is as slow as its last stage,
    run  >= (p - 1) c_first + max(0, m + 1 - p) c_first     or as its first,
    run  >= sum(c without c_first) + max(0, m + 1 - p) c_first
    step >= run,   step >= run + y_i - (c_0 + ... + c_i)    and then the reductions that go beyond
"""

import time
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from galvatron.formula import Choice, step_seconds
from galvatron.tables import Task

UNITS = 1e3
"""Milliseconds, so that HiGHS's tolerance of 1e-6 in a row is 1e-9 seconds."""


class Optimum(NamedTuple):
    """The best plan of a task, or of one of its embedding strategies."""

    seconds: float
    """Of the plan, by the formula; infinite where nothing fits."""
    bound: float
    """Proven: no plan takes less."""
    choice: Choice | None
    cpu: float


NOTHING = Optimum(np.inf, np.inf, None, 0.0)


def optimum(task: Task) -> Optimum:
    """The best plan of a task."""
    began = time.process_time()
    found = [_of_embedding(task, embed) for embed in range(len(task.other))]
    best = min(found, key=lambda each: each.seconds, default=NOTHING)
    return best._replace(bound=min(each.bound for each in found), cpu=time.process_time() - began)


def _of_embedding(task: Task, embed: int) -> Optimum:
    """The best plan with this embedding strategy."""
    kinds, room = len(task.sync), task.budget - task.other[embed]
    if any(layers * memory.min() > left for layers, memory, left in zip(task.stages, task.memory, room, strict=True)):
        return NOTHING
    solver = _programme(task, embed)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return NOTHING
    counts = np.rint(solver.getSolution().col_value[:-2]).astype(int).reshape(-1, kinds)
    choice = Choice(embed, tuple(tuple(np.repeat(np.arange(kinds), row).tolist()) for row in counts))
    return Optimum(step_seconds(task, choice), solver.getInfo().mip_dual_bound / UNITS, choice, 0.0)


def _programme(task: Task, embed: int) -> highspy.Highs:
    """Columns: the counts, stage by stage; the run; the step."""
    solver = highspy.Highs()
    solver.silent()
    for option, value in (("threads", 1), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.0)):
        solver.setOptionValue(option, value)
    kinds, columns = len(task.sync), len(task.stages) * len(task.sync) + 2
    upper = np.repeat(np.array(task.stages, dtype=float), kinds)
    solver.addVars(columns, np.zeros(columns), np.concatenate((upper, [np.inf, np.inf])))
    for column in range(columns - 2):
        solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    solver.changeColCost(columns - 1, 1.0)
    for place, layers in enumerate(task.stages):
        _row(solver, _at(task, place, np.ones(kinds)), layers, layers)
        _row(
            solver, _at(task, place, task.memory[place].astype(float)), -np.inf, task.budget - task.other[embed, place]
        )
    for row, least in _rows_of_formula(task, embed):
        _row(solver, row, least, np.inf)
    return solver


def _rows_of_formula(task: Task, embed: int) -> list[tuple[NDArray[np.float64], float]]:
    """Each row and the least that it has to come to: its terms on the right, and on the other side what the embedding
    takes."""
    stages, batches = len(task.stages), task.micro_batches
    plain = np.array([_at(task, place, task.nosync * UNITS) for place in range(stages)])
    synced = np.array([_at(task, place, task.sync * UNITS) for place in range(stages)])
    fixed = task.embed_nosync[embed] * UNITS
    run, step = np.eye(plain.shape[1])[-2:]
    rest = max(0, batches + 1 - stages)
    weights = np.ones((3, stages))
    weights[0, -1] += batches - 1
    weights[1] = [min(stages - 1, batches - 1) + rest, *[0] * (stages - 1)]
    weights[2, 0] = rest
    rows = [(run - weight @ plain, float(weight @ fixed)) for weight in weights]
    rows.append((step - run, 0.0))
    for place in range(stages):
        before = slice(0, place + 1)
        rows.append((step - run - synced[place] + plain[before].sum(axis=0), -float(fixed[before].sum())))
    return rows


def _at(task: Task, place: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """These values of the counts of one stage in a row."""
    kinds = len(values)
    row = np.zeros(len(task.stages) * kinds + 2)
    row[place * kinds : (place + 1) * kinds] = values
    return row


def _row(solver: highspy.Highs, values: NDArray[np.float64], least: float, most: float) -> None:
    places = np.flatnonzero(values)
    solver.addRow(least, most, len(places), places.astype(np.int32), values[places])
