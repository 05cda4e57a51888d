"""Recomputing in backward what forward did not keep: whole layers, or the core attention alone.

By torch's checkpoints (not re-entrant). Dropout draws from a counter, so that it drops the same once more; the random
state of torch need not be kept.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from meshwright.model.operators import Attention, Linear
from meshwright.model.spec import Layer
from meshwright.plan.spec import Recompute
from meshwright.runtime.precision import kept
from meshwright.runtime.split import common_module


def recompute_layer(root: nn.Module, layer: Layer, how: Recompute) -> None:
    """Let a layer recompute `full`, or its core attention (`selective`: Korthikanti 2022, section 5)."""
    if how == "full":
        for path in layer.modules:
            _keep_inputs(root.get_submodule(path))
    if how == "selective":
        for part in layer.stack.parts:
            if any(isinstance(operator, Attention) for operator in part.operators):
                paths = [layer.module_path(each.path) for each in part.operators if isinstance(each, Linear)]
                _keep_inputs_of_core(root.get_submodule(common_module(paths)))


def _keep_inputs(module: nn.Module) -> None:
    inner, again = module.forward, partial(_contexts, next(module.parameters(), None))

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, preserve_rng_state=False, context_fn=again, **kwargs)

    vars(module)["forward"] = forward


def _contexts(parameter: nn.Parameter | None) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For forward, and for recomputing it: backward may have left the mode that keeps float64 (autograd.grad does)."""
    return nullcontext(), kept(parameter.dtype) if parameter is not None else nullcontext()


class _CoreAgain(TorchFunctionMode):
    """While active, attention keeps its inputs alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return checkpoint(func, *args, use_reentrant=False, preserve_rng_state=False, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _keep_inputs_of_core(module: nn.Module) -> None:
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _CoreAgain():
            return inner(*args, **kwargs)

    vars(module)["forward"] = forward
