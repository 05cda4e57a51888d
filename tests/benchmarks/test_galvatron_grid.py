"""Galvatron's dynamic programme in numba."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings

from galvatron.tables import SETTINGS, Task, load
from tests.benchmarks.galvatron_tasks import tasks

pytest.importorskip("numba", reason="the dynamic programme needs numba: pip install 'meshwright[benchmark]'")
from galvatron.grid import solve, warm_up


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


def least_cost(task: Task, embed: int, place: int) -> float:
    """What the programme minimises, over every strategy of every layer."""
    memory, room = task.memory[place], task.budget - task.other[embed, place]
    return min(
        (
            sum(task.sync[kind] for kind in layers) + sum(task.change[pair] for pair in pairwise(layers))
            for layers in product(range(len(task.sync)), repeat=task.stages[place])
            if sum(memory[kind] for kind in layers) <= room
        ),
        default=np.inf,
    )


@given(tasks())
@settings(deadline=None)
def test_it_finds_the_least_of_every_stage(task: Task) -> None:
    found = solve(task).costs
    for embed, place in product(range(len(task.other)), range(len(task.stages))):
        assert found[embed, place] == pytest.approx(least_cost(task, embed, place), rel=1e-12)


@pytest.mark.parametrize("place", [0, 4, 9])
def test_it_comes_to_what_galvatron_found(place: int) -> None:
    task = load("testsuite_8gpu_36g")[place]
    found = solve(task)
    assert found.costs == pytest.approx(task.costs, rel=1e-12)
    assert found.seconds == pytest.approx(min(task.steps), rel=1e-12)
    assert "testsuite_8gpu_36g" in SETTINGS


def test_galvatron_runs_it_once_for_each_embedding_strategy() -> None:
    task = load("testsuite_8gpu_36g")[4]
    assert len(task.other) > 1
    found = solve(task)
    assert found.steps_repeated == found.steps * len(task.other)
