"""The seconds of a step when Galvatron's own times are run as a pipeline, event by event
(`meshwright.cost.simulation`).

1f1b. Of a layer a third is forward, a quarter where backward recomputes it (its backward is twice the forward,
`bct_fct_coe`); of embedding and head a third. Messages between stages are in its times of layers. The reductions of a
stage's gradients come after its last backward. What its formula leaves out is a change of the split between neighbours,
whose activations move: the physical seconds of `inter_cost_s`, each way.
"""

from itertools import pairwise

import numpy as np

from galvatron.formula import Choice
from galvatron.tables import Task
from meshwright.cost.simulation import Link, StageTime, simulate
from meshwright.plan.orders import orders

FORWARD, FORWARD_RECOMPUTED = 1 / 3, 1 / 4
"""Of a layer's seconds."""


def simulated_seconds(task: Task, choice: Choice, *, changes: bool = True) -> float:
    """Of a step, with or without what moves between unlike neighbours."""
    times = [stage_time(task, choice, place, changes=changes) for place in range(len(task.stages))]
    return run(times, task.micro_batches)


def run(times: list[StageTime], micro_batches: int) -> float:
    """Of a step of such stages.

    Where the first of two stages is the slowest, its first backward waits for 2/3 of a second:

    >>> round(run([StageTime(4 / 3, 8 / 3), StageTime(2 / 3, 4 / 3)], 4), 3)
    16.667
    """
    links = [Link(*pair) for pair in pairwise(range(len(times)))]
    return simulate(orders("1f1b", tuple(range(len(times))), micro_batches), times, links).seconds


def stage_time(task: Task, choice: Choice, place: int, *, changes: bool = True) -> StageTime:
    """Of one stage."""
    layers = list(choice.layers[place])
    seconds, embed = task.nosync[layers], float(task.embed_nosync[choice.embed, place])
    forward = float((seconds * np.where(task.recompute[layers], FORWARD_RECOMPUTED, FORWARD)).sum())
    forward += FORWARD * embed
    moved = sum(float(task.moved[pair]) for pair in pairwise(layers)) if changes else 0.0
    late = float((task.sync - task.nosync)[layers].sum())
    late += float(task.embed_sync[choice.embed, place]) - embed
    return StageTime(forward + moved, float(seconds.sum()) + embed - forward + moved, reduce=max(0.0, late))
