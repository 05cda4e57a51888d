"""What groups of a pipeline hold and wait for, against what their orders say action by action."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.memory import in_flight
from meshwright.cost.simulation import Link, StageTime, simulate
from meshwright.plan.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Order, orders
from meshwright.plan.rules_schedule import rounds_fit
from meshwright.plan.words import Schedule
from meshwright.search.frontier import Floats
from meshwright.search.ground import flight
from meshwright.search.instants import instants_of


def held(order: Order, stages: list[int]) -> Floats:
    """Micro-batches in flight of each stage during each action."""
    return np.stack([in_flight(order, (order.stage == stage) * 1.0) for stage in stages], axis=1)


def begun(order: Order, stages: list[int]) -> Floats:
    made = np.stack([(order.stage == stage) & (order.kind == BACKWARD) for stage in stages], axis=1)
    return (np.cumsum(made, axis=0) - made) > 0


@pytest.mark.parametrize("groups", [2, 3, 4, 6])
@pytest.mark.parametrize("virtual", [2, 3, 4])
def test_an_interleaved_group_holds_what_the_search_says_at_an_instant_of_its_order(groups: int, virtual: int) -> None:
    places = tuple(stage % groups for stage in range(groups * virtual))
    for count in (each for each in range(1, 5 * groups + 1) if rounds_fit(each, groups)):
        known = flight("interleaved", groups, virtual, count)
        for group, order in enumerate(orders("interleaved", places, count)):
            own = [stage for stage, place in enumerate(places) if place == group]
            table = held(order, own)
            fullest = table.sum(axis=1) == round(known.alive[group] * virtual)
            assert fullest.any()
            assert table.sum(axis=1).max() == round(known.alive[group] * virtual)
            may = fullest & (table.max(axis=1) <= known.most[group]) & (order.kind == BACKWARD)
            assert (may & begun(order, own).all(axis=1)).any() or (may.any() and not known.begun[group])


@pytest.mark.parametrize("count", [8, 16, 20, 64])
def test_what_an_interleaved_order_repeats_adds_no_fuller_instant(count: int) -> None:
    places = (0, 1, 2, 3) * 2
    for group, order in enumerate(orders("interleaved", places, count)):
        own, found = [group, group + 4], instants_of("interleaved", places, count, group)
        for row, kind, gradients in zip(held(order, own), order.kind, begun(order, own), strict=True):
            fuller = (found.held >= row).all(axis=1) & (found.begun >= gradients).all(axis=1)
            assert kind == FORWARD or fuller.any()


PLACES: dict[Schedule, tuple[int, ...]] = {
    "1f1b": (0, 1, 2),
    "gpipe": (0, 1),
    "interleaved": (0, 1, 0, 1),
    "zb-h1": (0, 1, 2),
    "zbv": (0, 1, 1, 0),
}


@given(
    schedule=st.sampled_from(sorted(PLACES)),
    times=st.lists(st.tuples(st.integers(1, 9), st.integers(2, 9)), min_size=4, max_size=4),
    travel=st.integers(0, 3),
)
def test_the_longest_chain_of_a_step_takes_as_long_as_the_step(
    schedule: Schedule, times: list[tuple[int, int]], travel: int
) -> None:
    places = PLACES[schedule]
    stages = [StageTime(there, back, weight=back / 2) for there, back in times[: len(places)]]
    links = [Link(stage, stage + 1, travel, travel) for stage in range(len(places) - 1)]
    step = simulate(orders(schedule, places, 8), stages, links)
    group, chain = step.longest
    seconds = np.zeros((len(stages), 4))
    for stage, each in enumerate(stages):
        seconds[stage, [FORWARD, BACKWARD, INPUT, WEIGHT]] = each.forward, each.backward, each.backward / 2, each.weight
    worked = float((chain * seconds).sum())
    assert worked == pytest.approx(step.seconds) if not travel else worked <= step.seconds
    assert step.seconds == max(span.end for span in step.spans if span.group == group)
