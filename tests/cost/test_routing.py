"""Copies of a position on their way to experts, against counts over all choices that there are."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.routing import Routing, copies
from tests.cost.build import QUICK


@pytest.mark.parametrize(
    ("experts", "ranks", "places", "chosen"), [(1, 8, 8, 2), (2, 4, 2, 3), (3, 4, 4, 2), (2, 6, 3, 4)]
)
def test_places_are_those_of_all_choices_in_the_mean(experts: int, ranks: int, places: int, chosen: int) -> None:
    each = experts * ranks // places
    choices = list(itertools.combinations(range(experts * ranks), chosen))
    mean = sum(len({expert // each for expert in choice}) for choice in choices) / len(choices)
    assert Routing(experts, chosen).distinct(places, ranks) == pytest.approx(mean)


@QUICK
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.data())
def test_no_more_copies_than_choices_nor_than_places(
    experts: int, inside: int, nodes: int, data: st.DataObject
) -> None:
    ranks = inside * nodes
    chosen = data.draw(st.integers(1, min(8, experts * ranks)))
    routing = Routing(experts, chosen)
    for places in (nodes, ranks):
        assert 1 - 1e-9 <= routing.distinct(places, ranks) <= min(places, chosen) + 1e-9
    assert routing.distinct(nodes, ranks) <= routing.distinct(ranks, ranks) + 1e-9


@pytest.mark.parametrize(("nodes", "most"), [(2, 2), (4, 4), (8, 4), (16, 8)])
def test_groups_that_a_model_limits_limit_the_nodes(nodes: int, most: int) -> None:
    """DeepSeek-V3's 4 of 8 groups: on 8 nodes they are 4, on 16 nodes each is on two, on fewer several share one."""
    limited, free = Routing(4, 8, groups=8, used=4), Routing(4, 8)
    assert limited.distinct(nodes, 64) == min(most, free.distinct(nodes, 64))


def test_one_node_sends_nothing_outside_and_single_ranks_nothing_inside() -> None:
    assert copies(Routing(2, 2), [range(8)]).outside == 0
    assert copies(Routing(2, 2), [[rank] for rank in range(8)]).inside == 0


def test_where_each_rank_has_one_expert_every_choice_is_another_rank() -> None:
    assert copies(Routing(1, 2), [range(4), range(4, 8)]) == pytest.approx(
        ((2 * (1 - math.comb(4, 2) / math.comb(8, 2))) / 2, 2 * 3 / 4)
    )
