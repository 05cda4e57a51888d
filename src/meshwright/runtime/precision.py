"""Float64 from end to end, for proofs: model code that casts down to float32 inside (norms, softmax) is kept from
it.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


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
