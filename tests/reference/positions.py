"""The two moves of sequence parallelism (Korthikanti 2022, section 4.2.2), with activations [seq / size, batch, width]
outside of the cut matrices.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear


def gathered(x: Tensor, group: Any) -> Tensor:
    """[seq / size, batch, width] → [seq, batch, width]."""
    whole = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    dist.all_gather_single(whole, x.contiguous(), group=group)
    return whole


def scattered(x: Tensor, group: Any) -> Tensor:
    """[seq, batch, width] → [seq / size, batch, width], summed over the ranks."""
    mine = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    dist.reduce_scatter_single(mine, x.contiguous(), group=group)
    return mine


class Columns(torch.autograd.Function):
    """x Wᵀ + b of all positions, from a rank's own. `again`: only these are kept, and gathered again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, how: tuple[Any, bool]) -> Tensor:
        """[seq / size, batch, inputs] → [seq, batch, outputs]."""
        ctx.group, ctx.again = how
        whole = gathered(x, ctx.group)
        ctx.save_for_backward(x if ctx.again else whole, weight)
        return linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradients of x, weight and bias."""
        kept, weight = ctx.saved_tensors
        whole, rows = gathered(kept, ctx.group) if ctx.again else kept, gradient.flatten(0, 1)
        return scattered(gradient @ weight, ctx.group), rows.T @ whole.flatten(0, 1), rows.sum(0), None


class Scattered(torch.autograd.Function):
    """The sum over the ranks, of a rank's own positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """[seq, batch, width] → [seq / size, batch, width]."""
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The way back."""
        return gathered(gradient, ctx.group), None
