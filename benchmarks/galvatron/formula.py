"""Galvatron's seconds of a step (`pipeline_costmodel`, at cea12ff)."""

from typing import NamedTuple

import numpy as np

from galvatron.tables import Floats, Task


class Choice(NamedTuple):
    """A whole plan of a task."""

    embed: int
    """The place of its embedding strategy."""
    layers: tuple[tuple[int, ...], ...]
    """The place of each layer's strategy, stage by stage."""


def pipeline_seconds(plain: Floats, synced: Floats, micro_batches: int) -> Floats:
    """`plain` are seconds of a micro-batch at each stage, embedding and head included; `synced` the same of the layers
    alone with the reduction of their gradients [..., P].

    The pipeline is as slow as its last stage, or as its first; of the reductions, that of the last micro-batch counts
    as far as it goes beyond the stages before. (A third of a micro-batch is forward, which makes no difference: forward
    and backward have the same shares everywhere.)

    Of 4 micro-batches over stages of 3 seconds the formula is exact: 4 and the bubble of one more.

    >>> float(pipeline_seconds(np.array([3.0, 3.0]), np.array([3.0, 3.0]), 4))
    15.0

    Where the first stage is the slowest nothing waits for the second, while such a pipeline takes 16.7 seconds
    (`events.run`):

    >>> float(pipeline_seconds(np.array([4.0, 2.0]), np.array([4.0, 2.0]), 4))
    16.0
    >>> float(pipeline_seconds(np.array([3.0]), np.array([5.0]), 4))
    14.0
    """
    run = run_seconds(plain, micro_batches)
    return np.asarray(run + np.maximum(0.0, (synced - np.cumsum(plain, axis=-1)).max(axis=-1)))


def run_seconds(plain: Floats, micro_batches: int) -> Floats:
    """The same without reductions."""
    stages, first, last = plain.shape[-1], plain[..., 0], plain[..., -1]
    rest = plain[..., 1:].sum(axis=-1)
    ahead = np.maximum(min(stages - 1, micro_batches - 1) * first, rest)
    by_last = first + rest + last * (micro_batches - 1)
    return np.asarray(np.maximum(by_last, ahead + first * max(0, micro_batches + 1 - stages)))


def stage_sums(task: Task, choice: Choice) -> tuple[Floats, Floats]:
    """What the formula takes of a plan: `plain` and `synced` seconds of each stage."""
    layers = [list(stage) for stage in choice.layers]
    plain = np.array([task.nosync[stage].sum() for stage in layers]) + task.embed_nosync[choice.embed]
    return plain, np.array([task.sync[stage].sum() for stage in layers])


def step_seconds(task: Task, choice: Choice) -> float:
    """Galvatron's seconds of a step of this plan."""
    return float(pipeline_seconds(*stage_sums(task, choice), task.micro_batches))


def fits(task: Task, choice: Choice) -> bool:
    """True where every stage keeps to the memory."""
    used = [int(memory[list(stage)].sum()) for memory, stage in zip(task.memory, choice.layers, strict=True)]
    return bool(np.all(np.array(used) + task.other[choice.embed] <= task.budget))
