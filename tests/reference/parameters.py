"""What a rank keeps of a model's parameters, as whole ones, slices or shards, and what is done with their gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tests.reference.model import LAYERS, Model

RATE, CLIP = 0.5, 0.05

Kept = dict[str, nn.Parameter]
"""What a rank keeps from step to step, by name. `copies` of a parameter says how many ranks keep the same numbers; by
default all of them do.
"""


def everything(model: Model, rank: int, size: int) -> Kept:
    """The whole model, on every rank."""
    return dict(model.named_parameters())


_COLUMNS, _ROWS = ("q", "k", "v", "gate", "up", "matrix", "0"), ("o", "down")
"""Modules whose outputs are cut over tensor ranks (of the embedding, "0", its rows), and those whose inputs are."""


def cut(model: Model, rank: int, size: int) -> Kept:
    """A slice of every matrix, and the rest whole; the model then computes with slices."""
    for name, parameter in model.named_parameters():
        module, kind = name.split(".")[-2:]
        if module in _COLUMNS or (module in _ROWS and kind == "weight"):
            parameter.data = parameter.data.chunk(size, int(module in _ROWS))[rank].clone()
            parameter.copies = 1
    return dict(model.named_parameters())


def stage(rank: int, size: int) -> range:
    """Places of a rank's layers in the model: of the numbered ones a run; the embedding before all, the head after."""
    each = LAYERS // size
    return range(rank * each + (rank > 0), (rank + 1) * each + 1 + (rank + 1 == size))


def staged(model: Model, rank: int, size: int) -> Kept:
    """The parameters of a run of layers: nobody else has them, but for what is tied."""
    model[0].weight.copies = 1 + model.job.tied
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in named if int(name.split(".")[0]) in stage(rank, size)}


def shard(layer: nn.Module, rank: int, size: int, dtype: torch.dtype) -> nn.Parameter:
    """A rank's run of a layer's parameters as one vector, with a gradient of zeros."""
    own = nn.Parameter(flat(layer).chunk(size)[rank].to(dtype, copy=True))
    own.grad, own.copies = torch.zeros_like(own), 1
    return own


def flat(layer: nn.Module) -> Tensor:
    """A layer's parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in layer.parameters()])


def _unflat(some: list[nn.Parameter], vector: Tensor) -> list[Tensor]:
    """A vector in the shapes of some parameters: views of it."""
    pieces = vector.split([parameter.numel() for parameter in some])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, some, strict=True)]


@torch.no_grad()
def put(layer: nn.Module, vector: Tensor) -> None:
    """Let a layer's parameters have these values."""
    some = list(layer.parameters())
    for parameter, value in zip(some, _unflat(some, vector), strict=True):
        parameter.copy_(value)


class Gatherable:
    """A layer whose parameters lie in one vector that can be freed, and filled again in the same place (as FSDP's)."""

    def __init__(self, layer: nn.Module) -> None:
        self._vector, some = flat(layer), list(layer.parameters())
        self._bytes = self._vector.nbytes
        for parameter, view in zip(some, _unflat(some, self._vector), strict=True):
            parameter.data = view
        self.free()

    def room(self) -> Tensor:
        """The vector, to be filled."""
        self._vector.untyped_storage().resize_(self._bytes)
        return self._vector

    def free(self) -> None:
        """Give its memory back: nobody can compute with the layer now."""
        self._vector.untyped_storage().resize_(0)


def taken(parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> Tensor:
    """The gradients of some parameters as one vector, taken away from them."""
    some = list(parameters)
    gradients = torch.cat([parameter.grad.flatten() for parameter in some]).to(dtype)
    for parameter in some:
        parameter.grad = None
    return gradients


def give(parameters: Iterable[nn.Parameter], gradients: Tensor) -> None:
    """Let some parameters have these gradients."""
    some = list(parameters)
    for parameter, gradient in zip(some, _unflat(some, gradients), strict=True):
        parameter.grad = gradient.to(parameter.dtype)


def square(parameters: Iterable[nn.Parameter], size: int) -> Tensor:
    """The sum of the squares of the gradients, one number. Where ranks keep the same numbers, of `size` ranks in all,
    each brings its part of the square.
    """
    squares = zeros()
    for parameter in parameters:
        squares += parameter.grad.double().square().sum() / getattr(parameter, "copies", size)
    return squares


@torch.no_grad()
def descend(parameters: Iterable[nn.Parameter], squares: Tensor | None = None) -> None:
    """Plain gradient descent, clipped by the global norm where its square is given."""
    scale = 1.0 if squares is None else min(1.0, CLIP / float(squares.sqrt()))
    for parameter in parameters:
        parameter.sub_(RATE * scale * parameter.grad)


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor of zeros; without a shape one number."""
    return torch.zeros(shape, dtype=dtype)
