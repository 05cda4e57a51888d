"""Collectives that several programs share: sums and exchanges that autograd knows, the loss over a cut vocabulary, the
numbers of a whole step.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.reference.model import LENGTH, SAMPLES, one_hot


class Sum(torch.autograd.Function):
    """Sums over the group `ahead` in forward, over `back` in backward; copies where that is none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: Any, back: Any) -> Tensor:
        """[...] → [...]."""
        ctx.back = back
        return _summed(x, ahead)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """[...] → [...]."""
        return _summed(gradient, ctx.back), None, None


def _summed(x: Tensor, group: Any) -> Tensor:
    if group is not None:
        dist.all_reduce(x := x.clone(), group=group)
    return x.view_as(x)


class Exchange(torch.autograd.Function):
    """Each rank's tensor is cut along one dim, a piece for each rank; the pieces that come are joined along another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int, join: int, group: Any) -> Tensor:
        """[..., cut, ..., join, ...] → [..., cut / size, ..., join · size, ...], and alike."""
        ctx.back = join, cut, group
        return _exchanged(x, cut, join, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The way back."""
        return _exchanged(gradient, *ctx.back), None, None, None


def _exchanged(x: Tensor, cut: int, join: int, group: Any) -> Tensor:
    sent = torch.stack(x.chunk(group.size(), cut))
    dist.all_to_all_single(got := torch.empty_like(sent), sent, group=group)
    return torch.cat(list(got), join)


def split_loss(logits: Tensor, labels: Tensor, group: Any) -> Tensor:
    """Cross entropy on logits [batch, seq, slice of the vocabulary] (Shoeybi 2019, section 3)."""
    dist.all_reduce(largest := logits.detach().amax(-1), dist.ReduceOp.MAX, group=group)
    logits = logits - largest[..., None]
    mine = one_hot(labels, dist.get_rank(group), group.size(), logits.dtype)
    total, picked = (Sum.apply(part.sum(-1), group, None) for part in (logits.exp(), logits * mine))
    return (total.log() - picked).sum() / (SAMPLES * LENGTH)


def reduce_numbers(**numbers: Tensor) -> None:
    """Sum what is one number for the whole step over all ranks: the `loss`, the square of the `norm`."""
    for purpose, number in numbers.items():
        dist.all_reduce(number, group=dist.new_group(group_desc=purpose))
