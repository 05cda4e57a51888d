"""Which positions ranks work on: every one once, early ones beside late ones in a ring."""

import math

from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.positions import around_the_ring, at_attention, at_matrices, between_layers, stream_order
from meshwright.plan.spec import Group, Row

MESH = {"a": 2, "b": 3, "c": 2}
GROUP = Group(devices=tuple(range(12)), mesh=MESH)
rows = st.builds(
    lambda *splits: Row(span="decoder.0", roles=dict(zip(MESH, splits, strict=True))),
    *[st.sampled_from(["dp", "cp", "ulysses", "tp", "tp+sp", "copy"])] * 3,
)


@given(row=rows)
def test_positions_are_held_once_and_gathered_by_those_that_need_them(row: Row) -> None:
    length = 24
    for rank in GROUP.devices:
        first, count = between_layers(length, GROUP, row, rank)
        inside, queries = at_matrices(length, GROUP, row, rank), at_attention(length, GROUP, row, rank)
        assert set(range(first, first + count)) <= set(inside) <= set(queries)
        ways = {split: math.prod(MESH[axis] for axis in row.axes(split)) for split in ("cp", "ulysses", "tp+sp")}
        assert count * ways["tp+sp"] == len(inside)
        assert len(inside) * ways["ulysses"] == len(queries)
        keys = [place for peer in around_the_ring(length, GROUP, row, rank) for place in peer]
        assert sorted(keys) == list(range(length))


@given(ring=st.integers(1, 5), size=st.integers(1, 3))
def test_each_rank_of_a_ring_has_as_much_to_see(ring: int, size: int) -> None:
    pieces = 2 * ring
    order = stream_order(pieces * size, pieces)
    assert sorted(order) == list(range(pieces * size))
    work = [sum(order[rank * 2 * size : (rank + 1) * 2 * size]) for rank in range(ring)]
    assert len(set(work)) == 1
