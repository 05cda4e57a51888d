"""Every name of torch's that is not public, in one place. Tried with 2.13 (tests/runtime/test_torch_private.py)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.convolution.default)
"""Kernels of torch that multiply matrices."""
CORES = (
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
)
"""Kernels that are a core attention."""

__all__ = [
    "ReduceScatter",
    "SkippedOnMeta",
    "WeightsHalf",
    "backward_for_input",
    "backward_for_weights",
    "multiply_all",
    "norms_of",
    "storage_of",
    "writes_of",
    "written_by",
]
WeightsHalf = list[dict[str, Any]]
"""What the half of a backward that is for the input leaves for the half that is for the weights."""


def backward_for_input(
    output: Tensor, gradient: Tensor | None, received: Tensor, weights: Sequence[nn.Parameter]
) -> tuple[Tensor, WeightsHalf]:
    """The gradient of `received`, and what `backward_for_weights` needs. Detaches `output` from its graph."""
    if output._is_view():  # OPT's layers return one; torch detaches in place, which a view cannot
        output = output.clone()
    gradients = None if gradient is None else [gradient]
    (found,), half = stage_backward_input([output], gradients, [received], iter(weights))
    assert found is not None
    return found, half


def backward_for_weights(weights: Sequence[nn.Parameter], half: WeightsHalf) -> None:
    """Add the weights' gradients. Uses `half` up."""
    stage_backward_weight(iter(weights), half)


def norms_of(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """The 2-norm of each tensor, in its own dtype."""
    found: tuple[Tensor, ...] = torch._foreach_norm(tensors)
    return found


def multiply_all(tensors: list[Tensor], factor: Tensor) -> None:
    """Scale tensors of one dtype in place by a number of that dtype."""
    torch._foreach_mul_(tensors, factor)


def storage_of(tensor: Tensor) -> int:
    """The number of a tensor's storage, as long as that lives; on meta too, where data pointers are all zero."""
    number: int = tensor.untyped_storage()._cdata
    return number


def writes_of(tensor: Tensor) -> int:
    """How often its values were written in place, by whatever name they have."""
    count: int = tensor._version
    return count


def tensors_in(value: Any) -> list[Tensor]:
    """Of whatever lists and tuples an operator puts out."""
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


def written_by(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that an operator of the dispatcher writes."""
    named = operator._schema.arguments
    given = {**dict(zip((each.name for each in named), args, strict=False)), **kwargs}
    writes = (given.get(each.name) for each in named if each.alias_info is not None and each.alias_info.is_write)
    return [each for each in writes if isinstance(each, Tensor)]


class SkippedOnMeta(TorchFunctionMode):
    """Tells of the calls of torch.nn.init that leave a tensor on meta alone: what they draw depends on values, so they
    ask first whether there are any (`trunc_normal_`, `orthogonal_`, `sparse_`, `dirac_`), and that is heard here.
    """

    def __init__(self, tell: Callable[[Callable[..., Any], list[Any]], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Tell the function that asks and its arguments, which it has not changed yet."""
        frame = sys._getframe(1)
        if func == torch.Tensor.is_meta.__get__ and frame.f_globals is vars(nn.init):  # type: ignore[attr-defined]
            code = frame.f_code
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            self._tell(getattr(nn.init, code.co_name), [frame.f_locals[name] for name in names])
        return func(*args, **(kwargs or {}))
