"""Plans for other systems: each passes their rules, and is the best of those that its recomputes allow."""

from typing import Any

import pytest

import meshwright as mw
from meshwright.errors import PlanError
from meshwright.plan.rules import Scope
from meshwright.plan.targets import TARGETS
from tests.cost.build import llama

MODEL = llama(num_hidden_layers=2, hidden_size=1024, intermediate_size=2816, vocab_size=8192)
RECIPE = mw.recipe(global_batch=16, sequence=2048)


@pytest.mark.parametrize("scope", TARGETS)
def test_a_plan_for_a_system_passes_its_rules_and_is_the_best_of_its_recomputes(scope: Scope) -> None:
    given: dict[str, Any] = {
        "scope": scope,
        "memory_limit": 4.5e9,
        "schedule": "1f1b",
        "time_limit": 200.0,
    }  # so little that something has to be computed again or sharded
    found = mw.plan(MODEL, "2xh100", RECIPE, **given)
    assert mw.check(found.plan, scope=scope, model=MODEL, recipe=RECIPE) == []
    times = []
    for word in TARGETS[scope].recomputes:
        try:
            times.append(mw.plan(MODEL, "2xh100", RECIPE, recompute=word, **given).estimate.step_time_s)
        except PlanError:
            continue
    assert times
    assert found.estimate.step_time_s <= min(times) * 1.01
    assert found.bound <= min(times)


def test_a_wider_scope_that_is_faster_is_said_in_one_line() -> None:
    narrow = mw.plan(MODEL, "4xh100", RECIPE, scope="deepspeed", tp=2, time_limit=200.0)
    wide = mw.plan(MODEL, "4xh100", RECIPE, tp=2, time_limit=200.0)
    lines = [note for note in narrow.notes if note.startswith("--for any would be")]
    assert len(lines) == (wide.estimate.step_time_s < narrow.estimate.step_time_s / 1.011)
    assert not [note for note in wide.notes if note.startswith("--for any")]
