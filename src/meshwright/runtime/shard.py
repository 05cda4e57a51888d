"""Which slice of each parameter a rank holds, and the way back to the whole."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.errors import PlanError
from meshwright.runtime.mesh import Peers


@dataclass(frozen=True)
class Cut:
    """A parameter cut along one dim into as many slices as the group has ranks; fused segments are each cut by
    themselves.
    """

    dim: int
    peers: Peers
    segments: tuple[int, ...] = ()
    """Widths of what is fused along the dim; empty: one segment."""
    copies: int = 1
    """Neighbours that hold the same slice: of KV heads, where these are fewer than ranks."""
    padded: int | None = None
    """The width along the dim, where slices are filled up with zeros to be equal: of a vocabulary."""

    @property
    def slices(self) -> int:
        """Into how many slices the parameter is cut."""
        return self.peers.size // self.copies

    def take(self, whole: Tensor, name: str) -> Tensor:
        """This rank's slice, a new tensor. Raises PlanError where it does not divide."""
        ways = self.slices
        if self.padded is not None:
            return self._filled_up(whole)
        segments = self.segments or (whole.shape[self.dim],)
        uneven = next((width for width in segments if width % ways), None)
        if uneven is not None:
            raise PlanError(f"{name}: {uneven} does not divide by tp {ways}; take a tp that divides it")
        pieces = [
            segment.chunk(ways, self.dim)[self.peers.place // self.copies]
            for segment in torch.split(whole, list(segments), self.dim)
        ]
        return torch.cat(pieces, self.dim).contiguous()

    def _filled_up(self, whole: Tensor) -> Tensor:
        """Its slice of a width that need not divide; zeros where there is nothing left."""
        shape = list(whole.shape)
        width, place = -(-shape[self.dim] // self.slices), self.peers.place // self.copies
        first = min(place * width, shape[self.dim])
        held = min(width, shape[self.dim] - first)
        shape[self.dim] = width
        piece = whole.new_zeros(shape)
        piece.narrow(self.dim, 0, held).copy_(whole.narrow(self.dim, first, held))
        return piece

    def assemble(self, slices: Sequence[Tensor]) -> Tensor:
        """The whole, from every rank's slice in mesh order."""
        ways, slices = self.slices, slices[:: self.copies]
        segments = [width // ways for width in self.segments] or [slices[0].shape[self.dim]]
        split = [torch.split(piece, segments, self.dim) for piece in slices]
        whole = [torch.cat([piece[number] for piece in split], self.dim) for number in range(len(segments))]
        joined = torch.cat(whole, self.dim)
        return joined if self.padded is None else joined.narrow(self.dim, 0, self.padded)


SUMMED = ("replica", "partial", "copied")
"""Why gradients are summed at the end of a step, over the group that a Layout has under that name; in this order."""


@dataclass(frozen=True)
class Layout:
    """How one parameter lies over the ranks of its layer."""

    name: str
    """In the untouched module, a tied parameter's first."""
    unit: str
    """The layer with which it is gathered and reduced: its own, or that of a tied parameter's owner."""
    cut: Cut | None
    """Tensor parallelism's slice."""
    shard: Peers | None
    """The group over which FSDP shards what the cut leaves."""
    replica: Peers | None
    """The group that holds the same slice, and sums its gradient at the end of a step."""
    copies: int
    """Ranks that hold each number: what the norm divides by."""
    tied: Peers | None = None
    """The ranks of other stages that hold a copy of a tied parameter's same slice, and sum its gradient with ours."""

    partial: Peers | None = None
    """Under `tp+sp`, of what all tensor ranks hold: those ranks, each with a part of its gradient (Korthikanti 2022,
    section 4.2.2).
    """
    copied: Peers | None = None
    """Of KV heads that are copied: the tensor ranks with the same, each with a part of their gradient."""

    @property
    def summed(self) -> tuple[tuple[str, Peers], ...]:
        """The groups over which its gradient is summed at the end of a step, one after the other, with the reason."""
        groups = ((why, getattr(self, why)) for why in SUMMED)
        return tuple((why, peers) for why, peers in groups if peers is not None)

    def whole(self, local: Tensor) -> Tensor:
        """The full parameter (or gradient), from this rank's part. Every rank of the layer must call it."""
        full_tensor = getattr(local, "full_tensor", None)
        piece = full_tensor() if full_tensor is not None else local
        piece = piece.detach()
        return piece.clone() if self.cut is None else self.cut.assemble(self.cut.peers.all_gather(piece))


def local_part(tensor: Tensor) -> Tensor:
    """What of a tensor this rank's memory holds."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
