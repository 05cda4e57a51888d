"""The best plan of Galvatron's tables: ours, the integer programme's, and by trying all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galvatron.events import simulated_seconds
from galvatron.formula import fits, step_seconds
from galvatron.ours import by_events, by_formula
from galvatron.programme import optimum
from galvatron.tables import Task, load
from meshwright.search.sequence import sequence_frontier
from tests.benchmarks.galvatron_tasks import plans, tasks


@given(st.lists(tasks(most_stages=2), min_size=1, max_size=3))
@settings(deadline=None)
def test_no_plan_of_several_tasks_is_better_under_the_formula(several: list[Task]) -> None:
    best = max((task.batch / step_seconds(task, plan) for task in several for plan in plans(task)), default=0.0)
    found = by_formula(several)
    assert found.rate == pytest.approx(best, rel=1e-12)
    assert found.bound == pytest.approx(best, rel=1e-9)
    if found.choice is not None:
        assert fits(several[found.place], found.choice)
        assert step_seconds(several[found.place], found.choice) == pytest.approx(found.seconds)


@given(tasks())
@settings(deadline=None, max_examples=40)
def test_the_integer_programme_finds_the_least_of_the_formula(task: Task) -> None:
    least = min((step_seconds(task, plan) for plan in plans(task)), default=np.inf)
    found = optimum(task)
    assert found.seconds == pytest.approx(least, rel=1e-9)
    assert found.bound == pytest.approx(least, rel=1e-7)


@given(tasks(most_stages=2))
@settings(deadline=None, max_examples=50)
def test_the_bound_holds_for_all_plans_that_run(task: Task) -> None:
    best = max((task.batch / simulated_seconds(task, plan) for plan in plans(task)), default=0.0)
    found = by_events([task])
    assert found.rate <= best * (1 + 1e-9)
    assert best <= found.bound * (1 + 1e-9)
    assert (found.choice is None) == (best == 0)


def test_our_plan_of_a_setting_is_the_integer_programmes() -> None:
    setting = load("testsuite_8gpu_36g")
    found = by_formula(setting)
    assert found.rate == pytest.approx(max(task.batch / optimum(task).bound for task in setting), rel=1e-9)
    assert found.rate > max(task.batch / min(task.steps) for task in setting if task.steps) * 1.005


@pytest.mark.parametrize("place", [0, 5, 12])
def test_with_changes_between_neighbours_our_frontiers_come_to_what_its_programme_found(place: int) -> None:
    task = load("testsuite_8gpu_36g")[place]
    change = np.stack((task.change, np.zeros_like(task.change)), axis=2)
    for stage, layers in enumerate(task.stages):
        costs = np.column_stack((task.sync, task.memory[stage]))
        room = (task.budget - task.other[:, stage]).astype(float)
        ways = sequence_frontier([0] * layers, [costs], lambda *_: change, np.array([np.inf, room.max()])).costs
        least = [ways[ways[:, 1] <= each, 0].min(initial=np.inf) for each in room]
        assert least == pytest.approx(task.costs[:, stage], rel=1e-12)
