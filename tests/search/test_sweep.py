"""Wishes that leave the number of devices or the batch open: each choice against the searches that it was made from."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import meshwright as mw
from meshwright.cli import command_line
from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError
from meshwright.search.answer import Answer, Tried
from tests.cost.build import llama

MODEL = llama(num_hidden_layers=4, hidden_size=1024, intermediate_size=2816, vocab_size=8192)
RECIPE = mw.recipe(global_batch=32, sequence=1024)
PATIENT = 200.0
"""Seconds: no search of these is ended by its limit, however busy the machine is."""


def searched(cluster: Any = "4xh100", **wishes: Any) -> Answer:
    return mw.plan(MODEL, cluster, RECIPE, **({"time_limit": PATIENT} | wishes))


def pace(each: Tried) -> float:
    assert each.candidate is not None
    return each.candidate.estimate.tokens_per_s


def test_of_a_range_of_batches_the_one_with_most_tokens_per_second_is_taken() -> None:
    found = searched(global_batch="8..24:8")
    assert [each.batch for each in found.tried] == [8, 16, 24]
    assert found.estimate.tokens_per_s == max(map(pace, found.tried))
    alone = mw.plan(
        MODEL, "4xh100", mw.recipe(global_batch=found.plan.recipe.global_batch, sequence=1024), time_limit=PATIENT
    )
    assert alone.plan == found.plan
    assert mw.estimate(found.plan, model=MODEL).step_time_s == found.estimate.step_time_s


@pytest.mark.parametrize(
    ("wishes", "worth"),
    [
        ({"objective": "tokens-per-device"}, lambda each: pace(each) / each.devices),
        ({"objective": "money"}, lambda each: -(each.price or 0.0)),
    ],
)
def test_an_objective_is_best_at_the_number_of_devices_that_was_chosen(
    wishes: dict[str, Any], worth: Callable[[Tried], float]
) -> None:
    found = searched("3xh100", **wishes)
    assert [each.devices for each in found.tried] == [1, 2, 3]
    best = max((each for each in found.tried if each.candidate), key=worth)
    assert (found.devices, found.estimate.tokens_per_s) == (best.devices, pace(best))
    assert found.plan.world_size == best.devices


def test_money_is_price_over_pace() -> None:
    found = searched("2xh100", objective="money")
    hourly = mw.cluster("2xh100").pools[0].price_per_device_hour
    assert hourly is not None
    for each in found.tried:
        assert each.price == pytest.approx(hourly * each.devices / 3600 / pace(each) * 1e6)


def test_the_fewest_devices_are_those_below_which_none_is_fast_enough() -> None:
    paces = {devices: searched(devices=devices).estimate.step_time_s for devices in (1, 2, 3)}
    found = searched(objective="devices", within=1.001 * paces[2])
    assert found.devices == 2
    [alone, both] = found.tried
    assert (alone.devices, both.devices, both.why) == (1, 2, "")
    assert alone.candidate is None or "is wanted" in alone.why


def test_a_number_of_devices_that_cannot_all_be_used_leaves_some_idle_and_says_why() -> None:
    found = searched("7xh100", forbid=("pp",), recompute="none")
    whole = found.tried[0]
    assert (whole.devices, whole.candidate) == (7, None)
    assert "no" in whole.why
    assert found.plan.world_size == found.devices < 7
    said = CliRunner().invoke(
        command_line(),
        ["plan", "--model", "gpt2", "--cluster", "7xh100", "--seq", "512", "--global-batch", "32", "--forbid", "pp"],
    )
    assert said.exit_code == 0, said.output
    assert re.search(r"devices +\d of 7 work, \d idle: with all of them ", said.output)


def test_a_number_of_devices_that_suits_the_batch_badly_is_compared_with_fewer() -> None:
    found = searched("5xh100", forbid=("pp",), global_batch="40..40")
    assert found.devices == 5, "40 samples divide over 5"
    found = searched("3xh100")
    fewer = [each for each in found.tried if each.devices < 3 and each.candidate]
    assert all(pace(each) <= found.estimate.tokens_per_s for each in fewer)


def unpriced() -> Cluster:
    data = mw.cluster("2xh100").as_data()
    data["pools"][0].pop("price_per_device_hour")
    return Cluster.from_data({"meshwright_cluster": 1} | data, "cluster")


@pytest.mark.parametrize(
    ("cluster", "wishes", "said"),
    [
        ("2xh100", {"objective": "devices"}, "objective 'devices': the fewest that do what? give within"),
        ("2xh100", {"objective": "speed"}, "objective: none is called 'speed'; known: devices, money"),
        ("2xh100", {"objective": "money", "devices": 2}, "chooses the number of devices, and devices is fixed to 2"),
        ("2xh100", {"within": 1e-6}, "no plan is fast enough: the fastest that was found has"),
        ("2xh100", {"at_least": 1e12}, "tokens/s, and 1,000,000,000,000 are wanted, on 2 devices"),
        ("2xh100", {"within": 0.0}, "within is more than 0"),
        ("2xh100", {"devices": 3}, "devices 3 is more than the 2 of '2xh100'; take 2"),
        ("2xh100", {"global_batch": "8-16"}, "write a number, or a range like '256..1024'"),
        ("2xh100", {"global_batch": "16..8"}, "16..8 does not; write '8..16'"),
        ("2xh100", {"global_batch": "1..1000:1"}, "more than 64 batches to search; take a step of 16 or more"),
        (
            unpriced(),
            {"objective": "money"},
            "has no price; write 'price_per_device_hour', in US dollars, under pools.0",
        ),
    ],
)
def test_what_cannot_be_is_said(cluster: Any, wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=re.escape(said)):
        searched(cluster, **wishes)


def test_the_command_takes_the_same_wishes() -> None:
    asked = ["plan", "--model", "gpt2", "--cluster", "2xh100", "--seq", "512", "--json"]
    found = CliRunner().invoke(
        command_line(),
        [*asked, "--global-batch", "8..16:8", "--objective", "devices", "--within", "30s", "--at-least", "1e3"],
    )
    assert found.exit_code == 0, found.output
    answer = json.loads(found.output)
    assert (answer["objective"], answer["devices"]) == ("devices", 1)
    assert [(each["devices"], each["global_batch"]) for each in answer["tried"]] == [(1, 8), (1, 16)]
    wrong = CliRunner().invoke(command_line(), [*asked, "--global-batch", "many"])
    assert wrong.exit_code != 0
    assert "write a number, or a range" in str(wrong.exception)


def test_one_device_has_a_price_too() -> None:
    said = CliRunner().invoke(
        command_line(),
        [
            "plan",
            "--model",
            "gpt2",
            "--cluster",
            "1xh100",
            "--seq",
            "1024",
            "--global-batch",
            "8",
            "--objective",
            "money",
        ],
    )
    assert said.exit_code == 0, said.output
    assert "USD" in said.output
