"""Splits into stages against all of them written out."""

from itertools import combinations, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.search.stages import best_split, objective

TIMES = st.integers(0, 9).map(float)


@given(st.data())
def test_the_split_is_the_best_of_all(data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, 3))
    layers = data.draw(st.integers(stages, 5))
    pieces = [(stage, a, b) for stage in range(stages) for a in range(layers) for b in range(a + 1, layers + 1)]
    tables = {
        piece: np.array(data.draw(st.lists(st.tuples(TIMES, TIMES, TIMES), max_size=2))).reshape(-1, 3)
        for piece in pieces
    }
    every = []
    for inner in combinations(range(1, layers), stages - 1):
        cuts = (0, *inner, layers)
        chosen = [tables[stage, cuts[stage], cuts[stage + 1]] for stage in range(stages)]
        every += [objective([tuple(way) for way in ways]) for ways in product(*chosen)]
    found = best_split(layers, stages, lambda *piece: tables[piece])
    assert (found.objective if found else None) == (min(every) if every else None)
    if found:
        ways = [tables[stage, found.cuts[stage], found.cuts[stage + 1]][found.ways[stage]] for stage in range(stages)]
        assert objective([tuple(way) for way in ways]) == found.objective
