"""What a pass takes at least, against passes in every order of options."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost.overlap import LayerTime, Streams, one_pass
from meshwright.search.passing import Passing, Run, least_pass

SECONDS = st.integers(0, 8).map(float)


@st.composite
def kinds(draw: st.DrawFn) -> list[Run]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        gather, reduce = draw(SECONDS), draw(SECONDS)
        options = tuple(Passing(draw(SECONDS), gather, reduce, 0.0) for _ in range(draw(st.integers(1, 2))))
        found.append(Run(options, (*(draw(st.integers(0, 2)) for _ in options[1:]), draw(st.integers(1, 2)))))
    return found


def passes(runs: list[Run], streams: Streams) -> list[float]:
    """In every order of the options of each kind, one kind at a time."""
    layers = [[o for o, count in zip(run.options, run.taken, strict=True) for _ in range(count)] for run in runs]
    orders: list[list[Passing]] = [[]]
    for own in layers:
        orders = [[*before, *after] for before in orders for after in set(permutations(own))]
    return [one_pass([LayerTime(*each[:3]) for each in order], streams).seconds for order in orders]


@settings(max_examples=150, deadline=None)
@given(kinds(), st.sampled_from([0, 1, 2]), st.sampled_from([0.0, 0.25]))
def test_no_order_takes_less(runs: list[Run], prefetch: int, contention: float) -> None:
    streams = Streams(prefetch, contention=contention)
    assert least_pass(runs, streams) <= min(passes(runs, streams)) * (1 + 1e-12)


def test_of_equal_layers_that_are_gathered_ahead_it_is_what_they_take() -> None:
    runs = [Run((Passing(4.0, 3.0, 2.0, 0.0),), (5,))]
    streams = Streams(contention=0.2)
    assert least_pass(runs, streams) == pytest.approx(passes(runs, streams)[0], rel=1e-12)
