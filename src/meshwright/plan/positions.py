"""Which positions of a sequence each rank works on, inside a layer and between layers. Pure arithmetic.

Positions lie in one order in all layers of a plan, the stream's, and every rank's share between layers is a run of it
(`plan.divisions`). Where a layer is a causal ring, the order pairs early positions with late ones, so that all ranks of
the ring have as much to do (Llama 3, section 3.3.2; Brandon 2023): of eight pieces 0 7 1 6 2 5 3 4.
"""

import math
from collections.abc import Iterable

from meshwright.plan.divisions import POSITION_SPLITS, Run
from meshwright.plan.groups import axis_groups, local_run
from meshwright.plan.spec import Group, Plan, Row


def ring_pieces(plan: Plan) -> int:
    """Into how many pieces the order of the stream cuts a sequence: two for each rank of a ring; one: its own order."""
    ring = math.lcm(*(plan.degree(row, on, "cp") for on, row in _rows(plan)))
    return 2 * ring if ring > 1 else 1


def divides_positions(plan: Plan) -> bool:
    """Whether a layer divides the positions among ranks."""
    return any(plan.degree(row, on, *POSITION_SPLITS) > 1 for on, row in _rows(plan))


def length_unit(plan: Plan) -> int:
    """What the length of a sequence must be a multiple of."""
    return math.lcm(ring_pieces(plan), *(plan.degree(row, on, *POSITION_SPLITS) for on, row in _rows(plan)))


def _rows(plan: Plan) -> Iterable[tuple[str, Row]]:
    return ((placed.group, placed.row) for placed in plan.placed)


def stream_order(length: int, pieces: int) -> list[int]:
    """The positions of a sequence in the order of the stream.

    >>> stream_order(8, 4), stream_order(3, 1)
    ([0, 1, 6, 7, 2, 3, 4, 5], [0, 1, 2])
    """
    size = length // pieces
    paired = [piece for early in range((pieces + 1) // 2) for piece in dict.fromkeys((early, pieces - 1 - early))]
    return [piece * size + place for piece in paired for place in range(size)]


def between_layers(length: int, group: Group, row: Row, rank: int) -> Run:
    """A rank's run of the stream between the layers."""
    return local_run(length, group, row.axes(*POSITION_SPLITS), rank)


def at_matrices(length: int, group: Group, row: Row, rank: int) -> list[int]:
    """Places in the stream of what a rank's matrices see: what the ranks of `tp+sp` hold together.

    >>> group = Group(devices="0-3", mesh={"x": 2, "y": 2})
    >>> row = Row(span="a", roles={"x": "cp", "y": "tp+sp"})
    >>> between_layers(8, group, row, 3), at_matrices(8, group, row, 3)
    ((6, 2), [4, 5, 6, 7])
    """
    return [place for peer in _peers(group, row, "tp+sp", rank) for place in _run(length, group, row, peer)]


def at_attention(length: int, group: Group, row: Row, rank: int) -> list[int]:
    """Places in the stream of a rank's queries: what the ranks of `ulysses` have together."""
    peers = _peers(group, row, "ulysses", rank)
    return [place for peer in peers for place in at_matrices(length, group, row, peer)]


def around_the_ring(length: int, group: Group, row: Row, rank: int) -> list[list[int]]:
    """Places in the stream of the keys of each rank of a ring, in the order of the ring."""
    return [at_attention(length, group, row, peer) for peer in _peers(group, row, "cp", rank)]


def _run(length: int, group: Group, row: Row, rank: int) -> range:
    first, count = between_layers(length, group, row, rank)
    return range(first, first + count)


def _peers(group: Group, row: Row, split: str, rank: int) -> tuple[int, ...]:
    return next(ranks for ranks in axis_groups(group, row.axes(split)) if rank in ranks)
