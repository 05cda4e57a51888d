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
from typing import Any

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
from meshwright.runtime.torch_private import CORES, PRODUCTS, storage_of, tensors_in, writes_of

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
    outputs = _Outputs()
    forward, again = (_Saving(save, outputs, again=again) for again in (False, True))
    return _first(outputs, forward), _again(outputs, wide, again)


class _Outputs:
    """What one call of a layer keeps, in the order of its operators, and those that its code can write to."""

    def __init__(self) -> None:
        self.kept: deque[Any] = deque()
        self._handed_out: list[tuple[Tensor, int]] = []

    def hand_out(self, tensor: Tensor) -> None:
        """Note a tensor whose values are kept, as the layer's code gets it."""
        self._handed_out.append((tensor.detach(), writes_of(tensor)))

    def check(self) -> None:
        """Raises PlanError where one has been written in place: what was kept is no longer what an operator put out."""
        if any(writes_of(tensor) != writes for tensor, writes in self._handed_out):
            raise PlanError(
                "the model's code writes in place to what an operator put out, which 'save' keeps; write "
                "'recompute: full'"
            )

    def take(self) -> Any:
        """The next."""
        self._handed_out.clear()
        return self.kept.popleft()


@contextmanager
def _first(outputs: _Outputs, saving: AbstractContextManager[Any]) -> Iterator[None]:
    with saving:
        yield
    outputs.check()


@contextmanager
def _again(outputs: _Outputs, wide: AbstractContextManager[Any], saving: AbstractContextManager[Any]) -> Iterator[None]:
    outputs.check()  # for what was written after the layer
    with wide, saving:
        yield


class _Saving(TorchFunctionMode):
    """One call of a layer: in forward the operators of `save` leave what they put out in `outputs`; when it runs again
    each takes its own, in the same order.
    """

    def __init__(self, save: frozenset[str], outputs: _Outputs, *, again: bool) -> None:
        super().__init__()
        self._save, self._outputs, self._again = save, outputs, again

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(func, *args, **(kwargs or {}))
        if func is _product:
            return self._of_kernels(PRODUCTS, partial(self._product, *args))
        if "attention" in self._save and func is functional.scaled_dot_product_attention:
            return self._of_kernels(CORES, call)
        if "attention" in self._save and func is attend_around:
            return self._around(*args)
        if "collective" in self._save and func is TensorRanks.leave:  # nothing of it is wanted by its backward
            return self._outputs.take().requires_grad_() if self._again else self._note(call())
        return call()

    def _product(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with self:  # it may end in what leaves the tensor ranks
            return forward(x)

    def _around(self, query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Attended:
        if self._again:
            return attend_around(query, key, value, ring._replace(known=self._outputs.take()))
        out, sums = attend_around(query, key, value, ring)
        self._outputs.hand_out(out)
        self._outputs.kept.append((out.detach(), sums))
        return out, sums

    def _note(self, out: Tensor) -> Tensor:
        self._outputs.hand_out(out)
        self._outputs.kept.append(out.detach())
        return out

    def _of_kernels(self, kernels: tuple[Any, ...], call: Callable[[], Tensor]) -> Tensor:
        """What a call gives in which some of these kernels run: once, since recomputing skips them."""
        if self._again:
            with self._outputs.take():
                return call()
        storages: set[int] = set()

        def policy(ran: Any, kernel: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            if kernel not in kernels:
                return CheckpointPolicy.PREFER_RECOMPUTE
            storages.update(map(storage_of, tensors_in(ran.op_output)))
            return CheckpointPolicy.MUST_SAVE

        first, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
        self._outputs.kept.append(again)
        with first:
            out = call()
        if not storages:
            word = "attention" if kernels is CORES else "matmul"
            raise PlanError(f"torch computes {word} in several kernels here, which 'save' cannot keep; leave it out")
        if storage_of(out) in storages:
            self._outputs.hand_out(out)
        return out


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
