"""Tensor parallelism: the collectives with their gradients, and the modules that hold a slice.

The scheme is Megatron's (Shoeybi 2019, section 3): what enters a block is copied (its gradient is all-reduced), the
first matrices are cut by output, the last by input, and what leaves is all-reduced (its gradient is copied). Under
`tp+sp` each rank has a run of the positions outside of the block: what enters is gathered, what leaves reduced and
scattered (Korthikanti 2022, section 4.2.2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import wrap_torch_function

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


class _GatherIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return torch.cat(peers.all_gather(x), 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.peers.reduce_scatter(gradients[0], 1), None


class _ScatterOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return peers.reduce_scatter(x, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.cat(ctx.peers.all_gather(gradients[0]), 1), None


def gather_in(x: Tensor, peers: Peers) -> Tensor:
    """[samples, a run of positions, ...] of each rank → all; the gradient is summed, each rank takes its run."""
    return _GatherIn.apply(x, peers)  # type: ignore[no-untyped-call, no-any-return]


def scatter_out(x: Tensor, peers: Peers) -> Tensor:
    """This rank's run of the positions of the sum over the group; the gradient is gathered."""
    return _ScatterOut.apply(x, peers)  # type: ignore[no-untyped-call, no-any-return]


@dataclass(frozen=True)
class TensorRanks:
    """The ranks over which a layer's matrices are cut: those that hold all positions between, those that hold a run."""

    all: Peers
    plain: Peers | None
    """`tp`"""
    scattered: Peers | None
    """`tp+sp`"""

    def enter(self, x: Tensor) -> Tensor:
        """x as it enters a split block."""
        x = gather_in(x, self.scattered) if self.scattered else x
        return copy_in(x, self.plain) if self.plain else x

    @wrap_torch_function(lambda self, x: (x,))
    def leave(self, x: Tensor) -> Tensor:
        """What each rank computed a part of, as it leaves a split block."""
        x = reduce_out(x, self.plain) if self.plain else x
        return scatter_out(x, self.scattered) if self.scattered else x


def is_transposed(module: nn.Module) -> bool:
    """True for modules whose weight is [inputs, outputs] (transformers' Conv1D), not [outputs, inputs]."""
    return type(module).__name__ == "Conv1D"


def _product(module: nn.Module, x: Tensor) -> Tensor:
    weight: Tensor = module.weight  # type: ignore[assignment]
    return torch.matmul(x, weight) if is_transposed(module) else functional.linear(x, weight)


def row_forward(module: nn.Module, ranks: TensorRanks) -> Callable[[Tensor], Tensor]:
    """The forward of a linear module that holds a slice of the inputs; the bias is added once, after the sum."""

    def forward(x: Tensor) -> Tensor:
        out = ranks.leave(_product(module, x))
        bias: Any = module.bias
        return out if bias is None else out + bias

    return forward


_PLAIN_LINEAR = ("Conv1D", "FalconLinear")
"""Classes of transformers with a forward of their own that is nn.Linear's in other words."""


def is_linear(module: nn.Module) -> bool:
    """True for modules whose forward is x W + b and no more."""
    return type(module).forward is nn.Linear.forward or type(module).__name__ in _PLAIN_LINEAR


def cut_vocabulary(module: nn.Embedding, ranks: TensorRanks, rows: int) -> None:
    """Let an embedding hold `rows` rows, the place-th such slice of the table. What its class does with the values that
    it looks up (Gemma's scales them) it does with its own.
    """
    first, inner, padding = ranks.all.place * rows, module.forward, module.padding_idx
    if padding is not None:
        module.padding_idx = padding - first if first <= padding < first + rows else None

    def forward(ids: Tensor) -> Tensor:
        outside = (ids < first) | (ids >= first + rows)
        local = (ids - first).masked_fill(outside, 0)
        return ranks.leave(inner(local).masked_fill(outside[..., None], 0))

    vars(module)["forward"] = forward


class Entrance:
    """A hook before the first matrices of a part: those that read the same activations share their way in, and so the
    sum of its gradient.
    """

    def __init__(self, ranks: TensorRanks, readers: int) -> None:
        self.ranks, self.readers, self._left = ranks, readers, 0
        self._held: tuple[Tensor, Tensor] | None = None

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The first argument, entered."""
        x = args[0]
        if self._held is None or self._held[0] is not x:
            self._held, self._left = (x, self.ranks.enter(x)), self.readers
        entered = self._held[1]
        self._left -= 1
        if not self._left:
            self._held = None  # memory that nobody wants any more
        return (entered, *args[1:])


def enter_split_block(module: nn.Module, ranks: TensorRanks) -> None:
    """Let the first input of a module enter once for all its split matrices, which share the sum of its gradient."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (ranks.enter(args[0]), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor) and value.is_floating_point())
        return args, kwargs | {name: ranks.enter(kwargs[name])}

    module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
