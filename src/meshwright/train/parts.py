"""What a rank holds of a parameter, as pieces of the whole tensor: what optimizers of whole matrices and checkpoints
go by.

Tensor parallelism cuts along one dim, each fused segment by itself; FSDP2 then divides what is left into runs of rows,
as `torch.chunk` does. So a part is a few boxes of the whole, each a view of this rank's memory.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.runtime.shard import Cut, Layout, local_part


class Piece(NamedTuple):
    """A box of a whole tensor: where it begins, and this rank's memory of it."""

    offsets: tuple[int, ...]
    tensor: Tensor

    def of(self, whole: Tensor) -> Tensor:
        """The same box of a whole tensor."""
        return whole[
            tuple(slice(start, start + size) for start, size in zip(self.offsets, self.tensor.shape, strict=True))
        ]


class _Run(NamedTuple):
    """A run of indices along a dim: where it begins in this rank's slice and in the whole, and its length."""

    local: int
    whole: int
    length: int


def pieces(part: Tensor, layout: Layout, shape: Sequence[int]) -> list[Piece]:
    """This rank's part of a parameter, or of what has its shape and layout (a gradient, a moment). `shape` is the whole
    one's. Views: who writes a piece writes the part. Ranks that hold the same numbers give the same pieces.
    """
    local = local_part(part).detach()
    if not shape:
        return [Piece((), local)]
    cut = layout.cut
    across = 0 if cut is None else cut.dim
    runs = [_Run(0, 0, shape[0])] if cut is None else list(_runs(cut, shape[across]))
    first = _first_row(layout, shape)
    found = []
    for run in runs:
        offsets, box = [0] * len(shape), local
        if across == 0:
            start, end = max(run.local, first), min(run.local + run.length, first + local.shape[0])
            if start >= end:
                continue
            offsets[0], box = run.whole + start - run.local, local[start - first : end - first]
        else:
            offsets[0], offsets[across] = first, run.whole
            box = local.narrow(across, run.local, run.length)
        if box.numel():
            found.append(Piece(tuple(offsets), box))
    return found


def _runs(cut: Cut, width: int) -> Iterator[_Run]:
    """Which indices of the cut dim this rank's slice has, before FSDP2 divides it."""
    ways, place = cut.slices, cut.peers.place // cut.copies
    if cut.padded is not None:
        filled = -(-width // ways)
        first = min(place * filled, width)
        yield _Run(0, first, min(filled, width - first))
        return
    local = whole = 0
    for segment in cut.segments or (width,):
        yield _Run(local, whole + place * (segment // ways), segment // ways)
        local, whole = local + segment // ways, whole + segment


def _first_row(layout: Layout, shape: Sequence[int]) -> int:
    """Where FSDP2's run of rows begins in the slice that it divides."""
    if layout.shard is None:
        return 0
    cut, rows = layout.cut, shape[0]
    if cut is not None and cut.dim == 0:
        rows = -(-rows // cut.slices)
    place = layout.shard.order.index(layout.shard.ranks[layout.shard.place])
    return min(place * -(-rows // layout.shard.size), rows)


def gathered(part: Tensor, layout: Layout, parameter: Tensor) -> Tensor:
    """The whole of what has a parameter's layout, from every rank's part. Every rank that holds the parameter must
    call it.
    """
    if isinstance(parameter, DTensor) and not isinstance(part, DTensor):
        part = DTensor.from_local(
            part, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
        )
    return layout.whole(part)


@torch.no_grad()
def put(whole: Tensor, part: Tensor, layout: Layout) -> None:
    """Copy this rank's part out of a whole tensor."""
    for piece in pieces(part, layout, whole.shape):
        piece.tensor.copy_(piece.of(whole))
