"""Dtypes: parameters that rest wider than they are computed with, and float64 from end to end.

Mixed precision (Micikevicius 2018, section 3.1) is FSDP2's: the parameters of a module rest in `master`, what the
optimizer steps; their copy in `compute` is gathered, or cast where no state shards them, and gradients add up and are
reduced in `reduce`.

For proofs in float64, model code that casts down to float32 inside (norms, softmax) is kept from it.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.overrides import TorchFunctionMode

from meshwright.recipe.spec import Precision
from meshwright.runtime.owners import DTYPES


def resting_dtype(precision: Precision) -> torch.dtype:
    """What the parameters of a module are kept in.

    >>> resting_dtype(Precision(compute="bf16", master="fp32")), resting_dtype(Precision(compute="bf16", master=None))
    (torch.float32, torch.bfloat16)
    """
    return DTYPES[precision.master or precision.compute]


def mixed_policy(precision: Precision) -> MixedPrecisionPolicy:
    """FSDP2's words for a recipe's dtypes; without effect where all are one."""
    if not precision.mixed:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[precision.compute], reduce_dtype=DTYPES[precision.reduce])


class KeepFloat64(TorchFunctionMode):
    """While active, casting a float64 tensor to a narrower float leaves it as it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Drop the narrowing from `.to(float32)`, `.float()`, and `dtype=` of functions that take one."""
        kwargs = dict(kwargs or {})
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.dtype == torch.float64:
            if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
                return first
            if func in (torch.Tensor.to, torch.Tensor.type):
                args = (first, *(torch.float64 if _narrow(value) else value for value in args[1:]))
            if _narrow(kwargs.get("dtype")):
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def _narrow(value: Any) -> bool:
    return value in (torch.float32, torch.float16, torch.bfloat16) if isinstance(value, torch.dtype) else False


def kept(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """The mode for a model of this dtype: active in float64 only."""
    return KeepFloat64() if dtype == torch.float64 else nullcontext()
