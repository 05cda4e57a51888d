"""Galvatron's formula and the events beside it, by hand and as laws."""

import doctest
import importlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galvatron.events import run, simulated_seconds, stage_time
from galvatron.formula import Choice, fits, step_seconds
from galvatron.ours import one_each_bound
from galvatron.tables import INFLATION, SETTINGS, Task, load, published
from meshwright.cost.simulation import StageTime

TWO_STAGES = Task(
    batch=4,
    micro_batches=4,
    stages=(2, 1),
    budget=20,
    names=("1-1-1", "1-2*-1"),
    recompute=np.array([False, True]),
    sync=np.array([3.5, 4.0]),
    nosync=np.array([3.0, 4.0]),
    change=np.array([[0.0, INFLATION], [INFLATION, 0.0]]),
    memory=np.array([[8, 4], [7, 3]]),
    embed_sync=np.array([[0.75, 0.25]]),
    embed_nosync=np.array([[0.5, 0.25]]),
    other=np.array([[6, 2]]),
    costs=np.array([[np.nan, np.nan]]),
    steps=(),
)


def test_a_step_by_hand() -> None:
    # c = (3 + 4 + 0.5, 3 + 0.25), y = (3.5 + 4, 3.5): the first stage is the slowest, 1 ahead and 3 more; the reduction
    # of its last micro-batch does not go beyond it: 7.5 - 7.5.
    assert step_seconds(TWO_STAGES, Choice(0, ((0, 1), (0,)))) == pytest.approx(4 * 7.5)
    # c = (6.5, 3.25), y = (7, 3.5): 0.5 beyond.
    assert step_seconds(TWO_STAGES, Choice(0, ((0, 0), (0,)))) == pytest.approx(4 * 6.5 + 0.5)


def test_what_fits() -> None:
    assert not fits(TWO_STAGES, Choice(0, ((0, 0), (0,))))
    assert fits(TWO_STAGES, Choice(0, ((0, 1), (0,))))


def test_events_by_hand() -> None:
    alone = replace(TWO_STAGES, stages=(2,), embed_sync=np.array([[0.75]]), embed_nosync=np.array([[0.5]]))
    choice = Choice(0, ((0, 1),))
    # Four micro-batches of 3 + 4 and the embedding's 0.5; then the gradients of one layer and of the embedding.
    assert simulated_seconds(alone, choice, changes=False) == pytest.approx(4 * 7.5 + 0.5 + 0.25)
    # A change of one second each way.
    assert simulated_seconds(alone, choice) == pytest.approx(4 * (7.5 + 2) + 0.75)
    # A third of a layer is forward, a quarter where backward runs forward again.
    assert stage_time(alone, choice, 0, changes=False).forward == pytest.approx(3 / 3 + 4 / 4 + 0.5 / 3)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.integers(0, 8), st.floats(0.1, 0.9))
def test_no_pipeline_is_shorter_than_its_bound(seconds: list[float], more: int, share: float) -> None:
    micro_batches = len(seconds) + more
    step = run([StageTime(share * each, (1 - share) * each) for each in seconds], micro_batches)
    assert one_each_bound(np.array(seconds), micro_batches, share) <= step * (1 + 1e-12)


@given(st.floats(0.1, 10), st.integers(1, 6), st.integers(0, 8))
def test_the_bound_is_exact_for_equal_stages(seconds: float, stages: int, more: int) -> None:
    step = run([StageTime(seconds / 3, 2 * seconds / 3)] * stages, stages + more)
    assert one_each_bound(np.full(stages, seconds), stages + more) == pytest.approx(step)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_best_task_is_the_answer_that_galvatron_gave(setting: str) -> None:
    best = max(task.batch / min(task.steps) for task in load(setting) if task.steps)
    assert best == pytest.approx(published(setting)["predicted_throughput_samples_s"], rel=1e-12)


@pytest.mark.parametrize("name", ["events", "formula", "ours", "tables"])
def test_worked_examples_come_out_as_written(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"galvatron.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
