"""Tensor parallelism: the collectives with their gradients, and the modules that hold a slice.

The scheme is Megatron's (Shoeybi 2019, section 3): what enters a block is copied (its gradient is all-reduced), the
first matrices are cut by output, the last by input, and what leaves is all-reduced (its gradient is copied).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.runtime.mesh import Peers


class _CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.peers.all_reduce(gradients[0].clone(memory_format=torch.contiguous_format)), None


class _ReduceOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        return peers.all_reduce(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def copy_in(x: Tensor, peers: Peers) -> Tensor:
    """x, equal on all ranks, as it enters a split block; the gradient is summed over the group."""
    return _CopyIn.apply(x, peers)  # type: ignore[no-untyped-call, no-any-return]


def reduce_out(x: Tensor, peers: Peers) -> Tensor:
    """The sum over the group of what each rank computed; the gradient is the same for all."""
    return _ReduceOut.apply(x, peers)  # type: ignore[no-untyped-call, no-any-return]


def is_transposed(module: nn.Module) -> bool:
    """True for modules whose weight is [inputs, outputs] (transformers' Conv1D), not [outputs, inputs]."""
    return type(module).__name__ == "Conv1D"


def _product(module: nn.Module, x: Tensor) -> Tensor:
    weight: Tensor = module.weight  # type: ignore[assignment]
    return torch.matmul(x, weight) if is_transposed(module) else functional.linear(x, weight)


def row_forward(module: nn.Module, peers: Peers) -> Callable[[Tensor], Tensor]:
    """The forward of a linear module that holds a slice of the inputs; the bias is added once, after the sum."""

    def forward(x: Tensor) -> Tensor:
        out = reduce_out(_product(module, x), peers)
        bias: Any = module.bias
        return out if bias is None else out + bias

    return forward


def vocabulary_forward(module: nn.Embedding, peers: Peers, rows: int) -> Callable[[Tensor], Tensor]:
    """The forward of an embedding that holds `rows` rows, the place-th such slice of the table."""
    first = peers.place * rows

    def forward(ids: Tensor) -> Tensor:
        outside = (ids < first) | (ids >= first + rows)
        local = (ids - first).masked_fill(outside, 0)
        padding = module.padding_idx
        out = functional.embedding(local, module.weight).masked_fill(outside[..., None], 0)
        if padding is not None:
            out = torch.where((ids == padding)[..., None], out.detach(), out)
        return reduce_out(out, peers)

    return forward


def enter_split_block(module: nn.Module, peers: Peers) -> None:
    """Copy the first input of a module in, so that its split matrices share one all-reduce of the gradient."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (copy_in(args[0], peers), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor) and value.is_floating_point())
        return args, kwargs | {name: copy_in(kwargs[name], peers)}

    module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
