"""What ranks hold are pieces of the whole: together all of it, each number as often as it is copied."""

from itertools import product
from typing import Any, cast

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.runtime.mesh import Peers
from meshwright.runtime.shard import Cut, Layout
from meshwright.train.parts import pieces, put


def peers(size: int, place: int, order: tuple[int, ...] = ()) -> Peers:
    return Peers(tuple(range(size)), place, cast(Any, None), order)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[torch.Size, list[Layout]]:
    """A whole shape, and the layouts of all ranks: tensor slices, and rows of them."""
    shard, ways, copies = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    dims = draw(st.integers(1, 3))
    dim = draw(st.integers(0, dims - 1))
    segments = tuple(ways * each for each in draw(st.lists(st.integers(1, 3), min_size=0, max_size=3)))
    padded = draw(st.integers(1, 9)) if not segments and draw(st.booleans()) else None
    shape = [draw(st.integers(1, 5)) for _ in range(dims)]
    shape[dim] = padded or sum(segments) or ways * draw(st.integers(1, 3))
    cut = draw(st.booleans())
    order = tuple(draw(st.permutations(range(shard))))
    found = []
    for row, place in product(range(shard), range(ways * copies)):
        slices = Cut(dim, peers(ways * copies, place), segments, copies, padded) if cut else None
        rows = peers(shard, row, order) if shard > 1 else None
        found.append(Layout("weight", "layer", slices, rows, None, copies))
    return torch.Size(shape), found


def held(whole: torch.Tensor, layout: Layout) -> torch.Tensor:
    """What a rank's memory has, as the runtime and FSDP2 cut it."""
    part = whole if layout.cut is None else layout.cut.take(whole, "weight")
    if layout.shard is None:
        return part.clone()
    place = layout.shard.order.index(layout.shard.ranks[layout.shard.place])
    rows = -(-part.shape[0] // layout.shard.size)
    return part[place * rows : (place + 1) * rows].clone()


@given(layouts())
def test_pieces_of_all_ranks_are_the_whole_and_each_is_where_it_says(case: tuple[torch.Size, list[Layout]]) -> None:
    shape, every = case
    whole = torch.arange(1, shape.numel() + 1, dtype=torch.float64).view(shape)
    times = torch.zeros(shape)
    for layout in every:
        for piece in pieces(held(whole, layout), layout, shape):
            assert torch.equal(piece.tensor, piece.of(whole))
            piece.of(times).add_(1)
    ranks, holders = len(every), every[0].cut.slices if every[0].cut else 1
    shards = every[0].shard.size if every[0].shard else 1
    assert (times == ranks / holders / shards).all()


@given(layouts())
def test_putting_a_whole_into_a_part_gives_what_the_rank_would_hold_of_it(
    case: tuple[torch.Size, list[Layout]],
) -> None:
    shape, every = case
    whole = torch.arange(1, shape.numel() + 1, dtype=torch.float64).view(shape)
    for layout in every:
        part = torch.zeros_like(held(whole, layout))
        put(whole, part, layout)
        assert torch.equal(part, held(whole, layout))
