"""One mesh for two layouts of the same ranks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.refine import refine, shard_nearest

CASES = [
    ({"tp": 2, "cp": 2, "dp": 4}, None, [("tp", 2), ("cp", 2), ("dp", 4)]),
    ({"tp": 8, "dp": 8}, {"tp": 1, "ep": 16, "dp": 4}, [("tp", 8), ("ep", 2), ("dp", 4)]),
    ({"tp": 4, "dp": 2}, {"tp": 2, "ep": 2, "dp": 2}, [("tp", 2), ("tp_ep", 2), ("dp", 2)]),
    ({"tp": 4, "dp": 2}, {"tp": 1, "ep": 2, "dp": 4}, [("tp_ep", 2), ("tp_dp", 2), ("dp", 2)]),
    ({"cp": 4, "dp": 2}, {"tp": 1, "ep": 2, "dp": 4}, [("cp_ep", 2), ("cp", 2), ("dp", 2)]),
    ({"dp": 8}, {"ep": 8}, [("dp", 8)]),
    ({"dp": 1}, None, []),
]


@pytest.mark.parametrize(("dense", "expert", "axes"), CASES)
def test_a_mesh_is_cut_where_either_layout_is(
    dense: dict[str, int], expert: dict[str, int] | None, axes: list[tuple[str, int]]
) -> None:
    assert [(piece.axis, piece.size) for piece in refine(dense, expert)] == axes


@pytest.mark.parametrize(
    ("dense", "expert", "message"),
    [
        ({"tp": 2, "dp": 3}, {"ep": 3, "dp": 2}, "tp 2 and ep 3 have no common refinement"),
        ({"tp": 2, "dp": 4}, {"ep": 4}, "the two layouts are not over equally many ranks"),
    ],
)
def test_layouts_without_a_common_mesh_are_refused(dense: dict[str, int], expert: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refine(dense, expert)


SIZES = st.sampled_from([1, 2, 4, 8])


@given(st.fixed_dictionaries(dict.fromkeys(("tp", "ulysses", "cp", "dp"), SIZES)), SIZES, SIZES)
def test_axes_have_names_of_their_own_and_make_up_both_layouts(dense: dict[str, int], tp: int, ep: int) -> None:
    rest, uneven = divmod(math.prod(dense.values()), tp * ep)
    if uneven or not rest:
        return
    expert = {"tp": tp, "ep": ep, "dp": rest}
    pieces = refine(dense, expert)
    assert len({piece.axis for piece in pieces}) == len(pieces)
    for kind, size in dense.items():
        assert math.prod(piece.size for piece in pieces if piece.dense == kind) == size
    for kind, size in expert.items():
        assert math.prod(piece.size for piece in pieces if piece.expert == kind) == size


@given(st.fixed_dictionaries(dict.fromkeys(("tp", "ulysses", "cp", "dp"), SIZES)), SIZES)
def test_as_many_ranks_shard_as_were_asked_for_and_the_mesh_is_as_large(dense: dict[str, int], ranks: int) -> None:
    pieces, copies = refine(dense), dense["ulysses"] * dense["cp"] * dense["dp"]
    if copies % ranks:
        return
    cut = shard_nearest(pieces, ranks)
    sharding = [piece.size for piece in cut if piece.shards and piece.dense != "tp"]
    assert math.prod(sharding) == ranks
    assert len({piece.axis for piece in cut}) == len(cut)
    for kind, size in dense.items():
        assert math.prod(piece.size for piece in cut if piece.dense == kind) == size


def test_more_ranks_than_hold_copies_do_not_shard() -> None:
    with pytest.raises(ValueError, match="16 is more ranks than hold equal parameters"):
        shard_nearest(refine({"tp": 2, "dp": 8}), 16)
    with pytest.raises(ValueError, match="6 ranks are no part of dp 8"):
        shard_nearest(refine({"tp": 2, "dp": 8}), 6)
