"""One mesh for two layouts of the same ranks: the dense layers' (tp, ulysses, cp, dp) and the experts' (tp, ep, dp)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwright.plan.spec import STATEFUL, Role

_NAMES = {("tp", "tp"): "tp", ("dp", "ep"): "ep"}


class Piece(NamedTuple):
    """One axis of a mesh, with what dense layers and experts do with it."""

    axis: str
    size: int
    dense: str
    expert: str
    shards: bool = True
    """False where the ranks along it are replicas, which hold what they have in common whole."""

    def role(self, *, sp: bool, state: str | None) -> Role:
        """The role of a layer as a whole."""
        return _role(self.dense, sp, state if self.shards else None)

    def expert_role(self, *, sp: bool, state: str | None) -> Role:
        """The role of routed experts. Where they are copied over the dense layers' tp, each copy takes a part of the
        sequence, as it lies between tp+sp matrices: `ulysses`, which without attention means just that.
        """
        state = state if self.shards else None
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


def shard_nearest(pieces: Sequence[Piece], ranks: int) -> tuple[Piece, ...]:
    """The mesh in which the `ranks` nearest of the ranks that hold equal dense parameters shard them together, and the
    others are replicas of these (HSDP). An axis of which a part shards is cut in two.

    Raises ValueError where no cut of the axes makes so many.

    >>> dp = Piece("dp", 16, "dp", "dp")
    >>> [(piece.axis, piece.size, str(piece.role(sp=False, state="zero3"))) for piece in shard_nearest([dp], 8)]
    [('dp', 8, 'dp/zero3'), ('dp_replica', 2, 'dp')]
    """
    found, left = [], ranks
    for piece in pieces:
        inside = min(left, piece.size) if piece.dense in STATEFUL else piece.size
        if piece.size % inside or (piece.dense in STATEFUL and left % inside):
            raise ValueError(f"{ranks} ranks are no part of {piece.axis} {piece.size}")
        if inside > 1:
            found.append(piece._replace(size=inside))
        if inside < piece.size:
            found.append(piece._replace(axis=f"{piece.axis}_replica", size=piece.size // inside, shards=False))
        left = left // inside if piece.dense in STATEFUL else left
    if left > 1:
        raise ValueError(f"{ranks} is more ranks than hold equal parameters")
    return tuple(found)


def _left(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(kind, size) for kind, size in sizes.items() if size > 1]


def _take(left: list[tuple[str, int]], piece: int) -> None:
    kind, size = left[0]
    left[:1] = [(kind, size // piece)] if size > piece else []


def _axis(dense: str, expert: str) -> str:
    """The name of one of several axes that a dense degree falls into."""
    plain = dense if expert == "dp" and dense != "tp" else f"{dense}_{expert}"
    return _NAMES.get((dense, expert), plain)
