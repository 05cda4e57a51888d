"""Modules and inputs without values: under a fake mode tensors have shapes and nothing else, whatever their size."""

import copy
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from meshwright.trace.errors import DATA_DEPENDENT, TraceError, build_failure

ModuleLike = nn.Module | Callable[[], nn.Module]


def fake_mode() -> FakeTensorMode:
    """A fake mode under which real tensors (constants of a model) may take part."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A tensor of the same shape and dtype without values, on the CPU; gradients pass through it where they can."""
    if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode and tensor.device.type == "cpu":
        return tensor
    with mode:
        return torch.empty_strided(tuple(tensor.shape), _stride(tensor), dtype=tensor.dtype, device="cpu")


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def fake_module(module: ModuleLike, mode: FakeTensorMode) -> nn.Module:
    """The module that a factory builds under the mode; or a copy of a module that exists, whose parameters have no
    values. The module itself is left as it is. Raises TraceError.
    """
    built = _copied(module, mode) if isinstance(module, nn.Module) else _built(module, mode)
    for parameter in built.parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(True)
    return built.train()


def _built(factory: Callable[[], nn.Module], mode: FakeTensorMode) -> nn.Module:
    if not callable(factory):
        raise TraceError(f"a {type(factory).__name__} is no torch.nn.Module, and nothing that builds one")
    try:
        built = _called(factory, mode)
    except TraceError:
        raise
    except Exception as error:
        raise build_failure(error, _name(factory)) from error
    if not isinstance(built, nn.Module):
        raise TraceError(f"{_name(factory)} gives a {type(built).__name__}, which is no torch.nn.Module")
    return built


def _called(factory: Callable[[], nn.Module], mode: FakeTensorMode) -> nn.Module:
    try:
        with mode:
            return factory()
    except DATA_DEPENDENT:
        with mode, _without_first_values():
            built = factory()
        tie = getattr(built, "tie_weights", None)
        if callable(tie):
            tie()  # which goes with the first values
        return built


def _without_first_values() -> AbstractContextManager[None]:
    """Some of transformers' first values are computed from numbers, which are not there."""
    if "transformers" not in sys.modules:
        return nullcontext()
    from transformers.initialization import no_init_weights

    context: AbstractContextManager[None] = no_init_weights()
    return context


def copied_with_values(module: nn.Module) -> nn.Module:
    """A copy that may run: training, all parameters with gradients. Raises TraceError."""
    built = _copy(module, {})
    for parameter in built.parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(True)
    return built.train()


def has_values(module: object) -> bool:
    """Whether a module can run for real: no parameter is fake or on meta."""
    return isinstance(module, nn.Module) and not any(
        parameter.is_meta or isinstance(parameter, FakeTensor) for parameter in module.parameters()
    )


def _copied(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Parameters, and buffers of numbers, are replaced; small tables (masks, indices) keep their values."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(
            fake_tensor(parameter.detach(), mode), requires_grad=parameter.is_floating_point()
        )
    for buffer in module.buffers():
        if buffer.is_floating_point() or buffer.is_complex() or buffer.is_meta:
            memo[id(buffer)] = fake_tensor(buffer.detach(), mode)
    return _copy(module, memo)


def _copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return copy.deepcopy(module, memo)
    except Exception as error:
        raise TraceError(
            f"a {type(module).__name__} cannot be copied ({type(error).__name__}: {error}): give a function that "
            "builds it instead of the module"
        ) from error


def fake_inputs(inputs: Any, mode: FakeTensorMode) -> Any:
    """Example inputs without values; copies of whole numbers keep theirs, since a model may read them."""

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        keeps = not (value.is_floating_point() or value.is_complex())
        return value.detach().clone() if keeps else fake_tensor(value.detach(), mode)

    return tree_map(fake, inputs)


def _name(factory: Any) -> str:
    return getattr(factory, "__name__", type(factory).__name__)
