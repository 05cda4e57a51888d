"""One mesh for two layouts of the same ranks: the dense layers' (tp, ulysses, cp, dp) and the experts' (tp, ep, dp)."""

from collections.abc import Mapping
from typing import NamedTuple

from meshwright.plan.spec import STATEFUL, Role

_NAMES = {("tp", "tp"): "tp", ("dp", "ep"): "ep"}


class Piece(NamedTuple):
    """One axis of a mesh, with what dense layers and experts do with it."""

    axis: str
    size: int
    dense: str
    expert: str

    def role(self, *, sp: bool, state: str | None) -> Role:
        """The role of a layer as a whole."""
        return _role(self.dense, sp, state)

    def expert_role(self, *, sp: bool, state: str | None) -> Role:
        """The role of routed experts. Where they are copied over the dense layers' tp, each copy takes a part of the
        sequence, as it lies between tp+sp matrices: `ulysses`, which without attention means just that.
        """
        if self.expert != "dp":
            return _role(self.expert, sp, state)
        return _role(self.dense if self.dense in STATEFUL else "ulysses", sp, state)


def _role(split: str, sp: bool, state: str | None) -> Role:
    if split == "tp":
        return Role("tp+sp" if sp else "tp")
    return Role(split, state if split in STATEFUL else None)


def refine(dense: Mapping[str, int], expert: Mapping[str, int] | None = None) -> tuple[Piece, ...]:
    """The coarsest mesh, fastest axis first, in which both layouts are products of axes; sizes of one are left out.

    Raises ValueError where there is none (6 ranks as 2 x 3 and as 3 x 2).

    >>> [piece[:2] for piece in refine({"tp": 8, "dp": 8}, {"tp": 1, "ep": 16, "dp": 4})]
    [('tp', 8), ('ep', 2), ('dp', 4)]
    """
    outer, found = _left(dense), []
    inner = _left(dense if expert is None else expert)
    while outer and inner:
        (kind, size), (expert_kind, expert_size) = outer[0], inner[0]
        piece = min(size, expert_size)
        if size % piece or expert_size % piece:
            raise ValueError(f"{kind} {size} and {expert_kind} {expert_size} have no common refinement")
        found.append((piece, kind, expert_kind))
        _take(outer, piece)
        _take(inner, piece)
    if outer or inner:
        raise ValueError("the two layouts are not over equally many ranks")
    kinds = [kind for _, kind, _ in found]
    return tuple(
        Piece(kind if kinds.count(kind) == 1 else _axis(kind, other), size, kind, other) for size, kind, other in found
    )


def _left(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(kind, size) for kind, size in sizes.items() if size > 1]


def _take(left: list[tuple[str, int]], piece: int) -> None:
    kind, size = left[0]
    left[:1] = [(kind, size // piece)] if size > piece else []


def _axis(dense: str, expert: str) -> str:
    """The name of one of several axes that a dense degree falls into."""
    plain = dense if expert == "dp" and dense != "tp" else f"{dense}_{expert}"
    return _NAMES.get((dense, expert), plain)
