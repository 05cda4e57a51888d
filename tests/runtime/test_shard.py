"""Slices of parameters and the way back."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import PlanError
from meshwright.runtime.shard import Cut


def _peers(size: int, place: int) -> Any:
    return SimpleNamespace(size=size, place=place)


@given(
    ways=st.sampled_from([1, 2, 3, 4]),
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    dim=st.sampled_from([0, 1]),
)
def test_the_slices_of_all_ranks_give_the_whole_back(ways: int, widths: list[int], dim: int) -> None:
    segments = tuple(width * ways for width in widths)
    shape = [5, 5]
    shape[dim] = sum(segments)
    whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)
    cuts = [Cut(dim, _peers(ways, place), segments) for place in range(ways)]
    slices = [cut.take(whole, "weight") for cut in cuts]
    assert sum(piece.numel() for piece in slices) == whole.numel()
    assert torch.equal(cuts[0].assemble(slices), whole)


def test_each_fused_segment_is_cut_by_itself() -> None:
    query_key_value = torch.tensor([0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23])
    second = Cut(0, _peers(2, 1), (4, 4, 4)).take(query_key_value, "c_attn.weight")
    assert second.tolist() == [2, 3, 12, 13, 22, 23]


def test_a_size_that_does_not_divide_is_named() -> None:
    with pytest.raises(PlanError, match=r"c_attn\.weight: 10 does not divide by tp 4"):
        Cut(0, _peers(4, 0)).take(torch.zeros(10, 2), "c_attn.weight")


@given(ways=st.sampled_from([2, 4, 6]), copies=st.sampled_from([1, 2]), rows=st.integers(1, 20))
def test_copies_and_filler_leave_the_whole_as_it_was(ways: int, copies: int, rows: int) -> None:
    whole = torch.arange(1.0, rows + 1)
    cuts = [Cut(0, _peers(ways, place), copies=copies, padded=rows) for place in range(ways)]
    slices = [cut.take(whole, "weight") for cut in cuts]
    assert len({piece.shape for piece in slices}) == 1
    assert all(torch.equal(slices[place], slices[place // copies * copies]) for place in range(ways))
    assert torch.equal(cuts[0].assemble(slices), whole)
