"""Small tasks of Galvatron's kind, and all their plans."""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import numpy as np
from hypothesis import strategies as st

from galvatron.formula import Choice, fits
from galvatron.tables import Task


@st.composite
def tasks(draw: st.DrawFn, most_stages: int = 3) -> Task:
    """At most four strategies, two embedding strategies and three stages of one to three layers; tight memory."""
    kinds, embeds = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    stages = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most_stages))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nosync = numbers.uniform(1, 2, kinds)
    embed = numbers.uniform(0, 0.5, (embeds, len(stages)))
    moves = numbers.uniform(0, 1, (kinds, kinds)) * draw(st.booleans())
    return Task(
        batch=8,
        micro_batches=len(stages) + draw(st.integers(0, 6)),
        stages=tuple(stages),
        budget=draw(st.integers(10, 40)),
        names=tuple(map(str, range(kinds))),
        recompute=numbers.random(kinds) < 0.5,
        sync=nosync + numbers.uniform(0, 0.25, kinds),
        nosync=nosync,
        change=np.where(np.eye(kinds), 0.0, moves + moves.T),
        memory=numbers.integers(1, 15, (len(stages), kinds)),
        embed_sync=embed + numbers.uniform(0, 0.25, embed.shape),
        embed_nosync=embed,
        other=numbers.integers(0, 8, embed.shape),
        costs=np.full(embed.shape, np.nan),
        steps=(),
    )


def plans(task: Task) -> Iterator[Choice]:
    """Every plan that fits, up to the order of a stage's layers."""
    ways = [list(combinations_with_replacement(range(len(task.sync)), layers)) for layers in task.stages]
    for embed, *layers in product(range(len(task.other)), *ways):
        choice = Choice(embed, tuple(layers))
        if fits(task, choice):
            yield choice
