"""What stages spend their time on, and how their groups are joined."""

import pytest

import meshwright as mw
from meshwright.cost.calibration import IDEAL
from meshwright.cost.collectives import Network, seconds
from meshwright.cost.placement import Placement
from meshwright.cost.simulation import Tied
from meshwright.cost.stage_times import Stages
from meshwright.plan.groups import process_groups
from meshwright.plan.rules import Inputs
from meshwright.recipe.spec import Recipe
from tests.cost.build import gpt2, inputs
from tests.plan.test_groups import spread_listener
from tests.plans import golden

TABLE = 4 * 128 * 64
"""Bytes of the gradient of the small GPT-2's table of words."""


def tied(given: Inputs) -> list[Tied]:
    """What groups sum together at the end of a step; nothing else is reduced."""
    stages = Stages(Placement(given, IDEAL))
    assert not any(work.reduce.total for work in stages.work)
    return stages.tied


@pytest.mark.parametrize("virtual", [1, 2])
def test_a_group_sums_a_tied_parameter_once_however_many_stages_it_has(virtual: int) -> None:
    model, recipe = gpt2(), Recipe(global_batch=8, sequence=64)
    plan = mw.uniform_plan(model, "2xh100", recipe, pp=2, virtual=virtual, micro_batches=4)
    given = Inputs(plan, model, mw.cluster("2xh100"), recipe)
    once = seconds("all_reduce", TABLE, 2, Network(given.cluster).way((0, 1)))
    assert tied(given) == [Tied((0, 1), pytest.approx(once))]


def test_the_slowest_pair_that_shares_a_tied_parameter_decides() -> None:
    """Devices 0 and 6 are in one node; 2 and 8 are not."""
    given = inputs(gpt2(), "2x8xh100", {"all": 6}, {"all": "copy"}, pp=2)
    network = Network(given.cluster)
    slow = seconds("all_reduce", TABLE, 2, network.way((2, 8)))
    assert slow > seconds("all_reduce", TABLE, 2, network.way((0, 6)))
    assert tied(given) == [Tied((0, 1), pytest.approx(slow))]


def listener_inputs(*, last: int) -> Inputs:
    """The listener with its decoder over two groups."""
    plan, model = spread_listener(last=last)
    recipe = Recipe(global_batch=8, sequence={"tokens": 16})
    return Inputs(plan, model, mw.cluster("8xh100"), recipe)


def test_an_encoder_is_a_link_to_every_stage_that_reads_it() -> None:
    links = Stages(Placement(listener_inputs(last=4), IDEAL)).links
    assert {(link.source, link.target) for link in links} == {(0, 1), (0, 2), (1, 2)}
    assert all(link.forward > 0 and link.backward > 0 for link in links)


@pytest.mark.parametrize("name", [*golden.NAMES, "listener", "listener, unlike"])
def test_what_costs_time_between_groups_has_a_process_group_and_the_other_way_round(name: str) -> None:
    listeners = {"listener": 2, "listener, unlike": 4}
    given = listener_inputs(last=listeners[name]) if name in listeners else golden.inputs(name)
    plan, reads = given.plan, {layer.name: layer.reads for layer in given.model.layers}
    of = {rank: group for group, found in plan.groups.items() for rank in found.devices}
    joined = [
        [{of[rank] for rank in ranks} for ranks in one.ranks]
        for one in process_groups(plan, reads=reads)
        if one.purpose == "pipeline"
    ]
    crossed = {(edge.source.group, edge.target.group) for edge in Placement(given).edges}
    crossed = {ends for ends in crossed if ends[0] != ends[1]}
    for ends in crossed:
        assert any(set(ends) <= ranks for lists in joined for ranks in lists)
    assert {group for lists in joined for ranks in lists for group in ranks} == {
        end for ends in crossed for end in ends
    }
