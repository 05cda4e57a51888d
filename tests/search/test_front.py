"""The front of step time against memory limit."""

import json
from itertools import pairwise

import pytest
from typer.testing import CliRunner

import meshwright as mw
from meshwright.cli import command_line
from meshwright.search.answer import Answer, point_of
from tests.cost.build import llama

MODEL = llama(num_hidden_layers=4, hidden_size=1024, intermediate_size=2816, vocab_size=8192)
RECIPE = mw.recipe(global_batch=16, sequence=2048)
ASKED = ["plan", "--model", "gpt2", "--cluster", "2xh100", "--seq", "512", "--global-batch", "16", "--tp", "1"]


@pytest.fixture(scope="module")
def answer() -> Answer:
    return mw.plan(MODEL, "2xh100", RECIPE, front=True, time_limit=200.0)


def test_less_memory_never_is_faster_and_the_first_point_is_the_answer(answer: Answer) -> None:
    assert len(answer.front) > 1
    assert answer.front[0][:3] == point_of(answer.best)[:3]
    for one, other in pairwise(answer.front):
        assert other.memory_limit < one.memory_limit
        assert other.step_time_s > one.step_time_s


def test_each_point_is_what_a_search_under_its_limit_finds(answer: Answer) -> None:
    for point in answer.front[1:4]:
        assert point.bound is not None
        found = mw.plan(MODEL, "2xh100", RECIPE, memory_limit=point.memory_limit * (1 + 1e-9), time_limit=200.0)
        assert point.bound <= found.estimate.step_time_s * (1 + 1e-9)
        assert found.bound <= point.step_time_s * (1 + 1e-9)
        assert all(each.asked.chance_above(point.memory_limit * (1 + 1e-9)) <= 0.1 for each in found.estimate.memory)


def test_the_command_prints_the_front_and_has_it_in_json() -> None:
    found = CliRunner().invoke(command_line(), [*ASKED, "--front"])
    assert found.exit_code == 0, found.output
    assert "step time against memory limit\n" in found.output
    plain = json.loads(CliRunner().invoke(command_line(), [*ASKED, "--json"]).output)
    assert plain["front"][0]["step_time_s"] == plain["estimate"]["step_time_s"]
    assert plain["front"][0].keys() == {"memory_limit_bytes", "step_time_s", "bound_s", "degrees"}
    assert all(each["bound_s"] is None for each in plain["front"])
