"""Normalisation over the batch whose samples lie on several ranks: the statistics are those of the whole micro-batch.

In forward each rank tells the others its mean and its sum of squared distances for each channel, which are put together
exactly (Chan 1979, equations 2.1); in backward the two sums over the batch that the gradient has (Ioffe and Szegedy
2015, section 3) are summed over the ranks. torch's own SyncBatchNorm runs on accelerators alone.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from meshwright.runtime.mesh import Peers


def share_statistics(module: nn.Module, peers: Peers) -> None:
    """Let the batch norms of a module take their statistics over the samples of all `peers`, which hold equally many.

    Running statistics are updated with those of the whole micro-batch, and so stay equal on all ranks.
    """
    for inner in module.modules():
        if isinstance(inner, _BatchNorm):
            _share(inner, peers)


def _share(norm: _BatchNorm, peers: Peers) -> None:
    alone = norm.forward

    def forward(x: Tensor) -> Tensor:
        if not (norm.training or norm.running_mean is None):
            return alone(x)
        over = _Over(peers, norm.eps)
        out, mean, squares = _Normalised.apply(x, norm.weight, norm.bias, over)  # type: ignore[no-untyped-call]
        if norm.training and norm.track_running_stats:
            _note(norm, mean, squares, peers.size * x.numel() // x.shape[1])
        return out  # type: ignore[no-any-return]

    vars(norm)["forward"] = forward


@torch.no_grad()
def _note(norm: _BatchNorm, mean: Tensor, squares: Tensor, count: int) -> None:
    """Update the running mean and (unbiased) variance, as torch's batch norm does."""
    assert norm.num_batches_tracked is not None, "it tracks"
    norm.num_batches_tracked.add_(1)
    weight = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    for running, new in ((norm.running_mean, mean), (norm.running_var, squares / max(count - 1, 1))):
        assert running is not None, "it tracks"
        running.lerp_(new.to(running.dtype), weight)


class _Over(NamedTuple):
    """What a batch norm is taken over, and what keeps it from dividing by zero."""

    peers: Peers
    eps: float


class _Normalised(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) · weight + bias, for x [samples, channels, ...]; besides, the mean and the sum
    of squared distances of each channel, in float32 or wider.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, over: _Over
    ) -> tuple[Tensor, Tensor, Tensor]:
        peers, eps = over
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, squares = _together(*_moments(wide), wide.numel() // wide.shape[1], peers)
        scale = (squares * wide.shape[1] / (peers.size * wide.numel()) + eps).rsqrt()
        normal = (wide - _along(mean, x)) * _along(scale, x)
        out = normal if weight is None else normal * _along(weight, x)
        ctx.save_for_backward(normal, scale, weight)
        ctx.peers, ctx.has_bias = peers, bias is not None
        ctx.mark_non_differentiable(mean, squares)
        return (out if bias is None else out + _along(bias, x)).to(x.dtype), mean, squares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normal, scale, weight = ctx.saved_tensors
        gradient, dims = gradients[0].to(normal.dtype), [0, *range(2, normal.dim())]
        of_bias, of_weight = gradient.sum(dims), (gradient * normal).sum(dims)
        both = ctx.peers.all_reduce(torch.stack([of_bias, of_weight]))
        mean_gradient, mean_product = both * normal.shape[1] / (ctx.peers.size * normal.numel())
        of_x = gradient - _along(mean_gradient, normal) - normal * _along(mean_product, normal)
        of_x = of_x * _along(scale if weight is None else scale * weight, normal)
        learns = weight is not None
        return (
            of_x.to(gradients[0].dtype),
            of_weight.to(weight.dtype) if learns else None,
            of_bias.to(weight.dtype) if learns and ctx.has_bias else None,
            None,
        )


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel, the mean and the sum of squared distances from it."""
    variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
    return mean, variance * (x.numel() // x.shape[1])


def _together(mean: Tensor, squares: Tensor, count: int, peers: Peers) -> tuple[Tensor, Tensor]:
    """The same of all ranks' values, of which each has `count` a channel."""
    means, parts = torch.stack(peers.all_gather(torch.stack([mean, squares]))).unbind(1)
    whole = means.mean(0)
    return whole, (parts + count * (means - whole).square()).sum(0)


def _along(channels: Tensor, x: Tensor) -> Tensor:
    """[channels] beside x [samples, channels, ...]."""
    return channels.view(-1, *[1] * (x.dim() - 2))
