"""Recomputing in backward what forward did not keep: whole layers, all of them but what some operators put out, or the
core attention alone.

By torch's checkpoints (not re-entrant). Dropout draws from a counter, so that it drops the same once more; the random
state of torch need not be kept. Operators whose outputs are kept run under the contexts of torch's selective
checkpoints, each call under a pair of its own: recomputing goes through autograd as forward did, and skips the kernels.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, wrap_torch_function
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshwright.errors import PlanError
from meshwright.model.cuts import makes_heads
from meshwright.model.operators import Attention, Convolution, Linear
from meshwright.model.spec import Layer
from meshwright.plan.spec import Recompute, Save
from meshwright.runtime.precision import kept
from meshwright.runtime.ring import Attended, Ring, attend_around
from meshwright.runtime.split import common_module
from meshwright.runtime.tensor import TensorRanks, is_linear
from meshwright.runtime.torch_private import writes_of

_Tensors = TypeVar("_Tensors", bound=tuple[Tensor, ...])
_aten = torch.ops.aten
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.convolution.default)
_CORES = (
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
)
"""Kernels of torch that are a core attention."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def recompute_layer(root: nn.Module, layer: Layer, how: Recompute) -> None:
    """Let a layer recompute `full`, all but what a `Save` names, or its core attention (`selective`: Korthikanti 2022,
    section 5). Raises PlanError for a matrix whose output it cannot keep.
    """
    if how == "full" or isinstance(how, Save):
        save = frozenset(how.save if isinstance(how, Save) else ())
        for path in _saved_matrices(layer, save):
            _tell_product(root.get_submodule(path), path)
        for path in layer.modules:
            _keep_inputs(root.get_submodule(path), save)
    if how == "selective":
        for part in layer.stack.parts:
            if any(isinstance(operator, Attention) for operator in part.operators):
                paths = [layer.module_path(each.path) for each in part.operators if isinstance(each, Linear)]
                _keep_inputs_of_core(root.get_submodule(common_module(paths)))


def _saved_matrices(layer: Layer, save: frozenset[str]) -> list[str]:
    """The paths of those whose outputs are kept. Every second is counted over the layer, as in `cost.reads`."""
    operators = layer.stack.operators
    linears = [each for each in operators if isinstance(each, Linear)]
    found = linears[::2] if "half-matmul" in save else []
    if "qkv" in save:
        found = found + [each for each in linears if makes_heads(each)]
    every = [each for each in operators if isinstance(each, Linear | Convolution)] if "matmul" in save else found
    return list(dict.fromkeys(layer.module_path(each.path) for each in every))


@wrap_torch_function(lambda forward, x: (x,))
def _product(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a matrix puts out that a layer keeps."""
    return forward(x)


def _tell_product(module: nn.Module, path: str) -> None:
    if not (is_linear(module) or isinstance(module, _CONVOLUTIONS)):
        raise PlanError(
            f"recompute keeps what nn.Linear, transformers' Conv1D and convolutions put out, and '{path}' is "
            f"{type(module).__name__}; write 'recompute: full' for its layer"
        )
    vars(module)["forward"] = partial(_product, module.forward)


def _keep_inputs(module: nn.Module, save: frozenset[str]) -> None:
    inner, contexts = module.forward, partial(_contexts, next(module.parameters(), None), save)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **kwargs)

    vars(module)["forward"] = forward


def _contexts(
    parameter: nn.Parameter | None, save: frozenset[str]
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For forward, and for recomputing it: backward may have left the mode that keeps float64 (autograd.grad does)."""
    wide = kept(parameter.dtype) if parameter is not None else nullcontext()
    if not save:
        return nullcontext(), wide
    outputs: deque[Any] = deque()
    return _Saving(save, outputs, again=False), _both(wide, _Saving(save, outputs, again=True))


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield


class _Saving(TorchFunctionMode):
    """One call of a layer: in forward the operators of `save` leave what they put out in `outputs`; when it runs again
    each takes its own, in the same order.
    """

    def __init__(self, save: frozenset[str], outputs: deque[Any], *, again: bool) -> None:
        super().__init__()
        self._save, self._outputs, self._again = save, outputs, again

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _product:
            with self._skipping(_PRODUCTS), self:  # it may end in what leaves the tensor ranks
                return args[0](*args[1:])
        if "attention" in self._save and func is functional.scaled_dot_product_attention:
            with self._skipping(_CORES):
                return func(*args, **(kwargs or {}))
        if "attention" in self._save and func is attend_around:
            return self._around(*args)
        if "collective" in self._save and func is TensorRanks.leave:  # nothing of it is wanted by its backward
            return self._taken()[0].requires_grad_() if self._again else self._note((func(*args),))[0]
        return func(*args, **(kwargs or {}))

    def _around(self, query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Attended:
        if self._again:
            return attend_around(query, key, value, ring._replace(known=self._taken()))
        return self._note(attend_around(query, key, value, ring))

    def _skipping(self, kernels: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """In which these kernels run once: what recomputing takes of the first time, it skips."""
        again: AbstractContextManager[Any] = self._outputs.popleft() if self._again else self._noting(kernels)
        return again

    @contextmanager
    def _noting(self, kernels: tuple[Any, ...]) -> Iterator[None]:
        ran = []

        def policy(_: Any, kernel: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            ran.append(kernel in kernels)
            return CheckpointPolicy.MUST_SAVE if ran[-1] else CheckpointPolicy.PREFER_RECOMPUTE

        first, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
        self._outputs.append(again)
        with first:
            yield
        if not any(ran):
            raise PlanError(
                "recompute keeps what one kernel puts out, and torch computes this one in several; leave "
                f"'{'attention' if kernels is _CORES else 'matmul'}' out of 'save'"
            )

    def _note(self, tensors: _Tensors) -> _Tensors:
        kept = tuple(each.detach() for each in tensors)
        self._outputs.append((kept, tuple(map(writes_of, kept))))
        return tensors

    def _taken(self) -> Any:
        """The next outputs, as `_note` got them."""
        tensors, writes = self._outputs.popleft()
        assert tuple(map(writes_of, tensors)) == writes, "written after it was kept"
        return tensors


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
