"""Relaxed runs of equal layers, and what is found with their prices, against all ways."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwright.search.frontier import undominated
from meshwright.search.relaxed import Hull, bounded_frontier, cheapest, whole_near

Floats = NDArray[np.float64]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Floats, Floats, int, float]:
    """Costs of one to three columns, sizes, layers and a capacity that the smallest options fit into."""
    options, columns, layers = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    whole = st.integers(0, 20)
    costs = np.array(
        draw(st.lists(st.lists(whole, min_size=columns, max_size=columns), min_size=options, max_size=options))
    )
    sizes = np.array(draw(st.lists(st.integers(1, 9), min_size=options, max_size=options)))
    capacity = draw(st.integers(int(sizes.min()) * layers, 10 * layers))
    return costs.astype(float), sizes.astype(float), layers, float(capacity)


def ways(options: int, layers: int) -> NDArray[np.int64]:
    """All of them, as counts."""
    dealt = combinations_with_replacement(range(options), layers)
    return np.array([np.bincount(each, minlength=options) for each in dealt])


@given(runs(), st.lists(st.integers(0, 100) | st.just(np.inf), min_size=3, max_size=3))
def test_the_frontier_is_that_of_all_ways_within_the_limits(
    run: tuple[Floats, Floats, int, float], limits: list[float]
) -> None:
    costs, sizes, layers, capacity = run
    most = np.array(limits[: costs.shape[1]], dtype=float)
    every = ways(len(costs), layers)
    sums = every[every @ sizes <= capacity] @ costs
    sums = sums[(sums <= most).all(axis=1)]
    found, counts = bounded_frontier(costs, sizes, layers, capacity, most)
    assert found.tolist() == sums[undominated(sums)].tolist()
    assert (counts @ costs).tolist() == found.tolist()
    assert (counts @ sizes <= capacity).all()
    assert (counts.sum(axis=1) == layers).all()


@given(runs())
def test_whole_layers_lie_between_the_bound_and_what_is_near_it(run: tuple[Floats, Floats, int, float]) -> None:
    costs, sizes, layers, capacity = run
    first, every = costs[:, 0], ways(len(costs), layers)
    least = (every[every @ sizes <= capacity] @ first).min()
    near = whole_near(first, sizes, layers, capacity)
    assert near.sum() == layers
    assert near @ sizes <= capacity
    assert Hull(first, sizes).bounds(layers, np.array([capacity]))[0] <= least * (1 + 1e-12)
    assert least <= near @ first
    assert cheapest(first, sizes, layers, capacity) @ first == pytest.approx(least)


@given(runs())
def test_the_price_is_the_slope_of_the_bound(run: tuple[Floats, Floats, int, float]) -> None:
    costs, sizes, layers, capacity = run
    hull = Hull(costs[:, 0], sizes)
    here, more = hull.bounds(layers, np.array([capacity, capacity + 1e-6]))
    assert here - more == pytest.approx(1e-6 * hull.price(layers, capacity), rel=1e-3, abs=1e-9)
