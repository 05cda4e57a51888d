"""Frontiers against all ways written out."""

from itertools import combinations_with_replacement, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwright.search.frontier import Option, option_costs, repeated, run_frontier, undominated
from meshwright.search.sequence import sequence_frontier

NUMBERS = st.integers(0, 6).map(float)


def tables(columns: int, most: int = 4) -> st.SearchStrategy[NDArray[np.float64]]:
    return st.lists(st.tuples(*[NUMBERS] * columns), min_size=1, max_size=most).map(np.array)


def beaten(row: tuple[float, ...], by: tuple[float, ...]) -> bool:
    return by != row and all(one <= other for one, other in zip(by, row, strict=True))


def front_of(rows: list[tuple[float, ...]]) -> set[tuple[float, ...]]:
    return {row for row in rows if not any(beaten(row, other) for other in rows)}


def as_set(costs: NDArray[np.float64]) -> set[tuple[float, ...]]:
    return set(map(tuple, costs.tolist()))


@given(st.integers(1, 4).flatmap(lambda columns: tables(columns, 30)))
def test_what_is_kept_is_what_no_row_beats(rows: NDArray[np.float64]) -> None:
    kept = undominated(rows)
    assert as_set(rows[kept]) == front_of(list(map(tuple, rows.tolist())))
    assert len(kept) == len(as_set(rows[kept]))


@given(st.integers(1, 3).flatmap(tables), st.integers(0, 6), st.integers(0, 20))
def test_repeated_layers_have_the_frontier_of_all_counts(costs: NDArray[np.float64], layers: int, room: int) -> None:
    limit = np.full(costs.shape[1], np.inf)
    limit[-1] = room
    every = [costs[list(taken)].sum(axis=0) for taken in combinations_with_replacement(range(len(costs)), layers)]
    found = repeated(costs, layers, limit)
    assert as_set(found.costs) == front_of([tuple(row.tolist()) for row in every if (row <= limit).all()])
    assert (found.counts.sum(axis=1) == layers).all()
    assert np.array_equal(found.counts @ costs, found.costs)


OPTIONS = st.builds(Option, *[NUMBERS] * 6)


@given(st.lists(OPTIONS, min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 60))
def test_what_is_there_once_counts_once(options: list[Option], layers: int, in_flight: int, capacity: int) -> None:
    every = []
    for taken in combinations_with_replacement(range(len(options)), layers):
        row = option_costs([options[each] for each in taken], in_flight).sum(axis=0)
        row[2] += max(options[each].fixed for each in taken)
        every += [tuple(row.tolist())] if row[2] <= capacity else []
    assert as_set(run_frontier(options, layers, in_flight, capacity).costs) == front_of(every)


@given(st.data())
def test_a_sequence_has_the_frontier_of_all_paths(data: st.DataObject) -> None:
    tables_of_kinds = [data.draw(tables(2, 3)) for _ in range(2)]
    kinds = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    changes = {
        (one, other): np.array(
            data.draw(
                st.lists(
                    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=(n := len(tables_of_kinds[other])), max_size=n),
                    min_size=(m := len(tables_of_kinds[one])),
                    max_size=m,
                )
            )
        )
        for one, other in product(range(2), repeat=2)
    }
    limit = np.array([np.inf, data.draw(NUMBERS) * 6])

    def cost(path: tuple[int, ...]) -> NDArray[np.float64]:
        total = sum(tables_of_kinds[kind][option] for kind, option in zip(kinds, path, strict=True))
        for place in range(1, len(kinds)):
            total = total + changes[kinds[place - 1], kinds[place]][path[place - 1], path[place]]
        return np.asarray(total)

    every = [cost(path) for path in product(*(range(len(tables_of_kinds[kind])) for kind in kinds))]
    found = sequence_frontier(kinds, tables_of_kinds, lambda one, other: changes[one, other], limit)
    assert as_set(found.costs) == front_of([tuple(row.tolist()) for row in every if (row <= limit).all()])
    for costs, path in zip(found.costs, found.options, strict=True):
        assert np.array_equal(cost(tuple(path.tolist())), costs)
