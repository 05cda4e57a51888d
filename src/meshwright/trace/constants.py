"""Small tensors whose values follow from nothing but the program: they are computed besides, so that a model may look
at them while all else has no values (rates of stochastic depth, masks of ones).
"""

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from meshwright.trace.errors import DATA_DEPENDENT
from meshwright.trace.tape import words

_LARGEST = 4096
_RANDOM = frozenset({"rand", "rand_like", "uniform_"})
_ALMOST_ONE = 1 - 1e-6
"""What stands for a random number from 0 to 1: with it, nothing is dropped at random."""
_REFUSED = words("randn randn_like randint randint_like randperm normal_ bernoulli bernoulli_ multinomial resize_")
"""Operations whose values mean nothing."""


class Constants:
    """The values of tensors that have some, by the tensor."""

    def __init__(self) -> None:
        self._values: dict[int, torch.Tensor] = {}
        self._held: list[torch.Tensor] = []
        """Keeps real tensors alive, so that no identity stands for two of them; the recorder keeps the others."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's value, where it is a constant; of a small real one a copy, which may be written into."""
        known = self._values.get(id(tensor))
        if known is None and type(tensor) is torch.Tensor and not tensor.is_meta and tensor.numel() <= _LARGEST:
            with _disable_current_modes():
                known = self._values[id(tensor)] = tensor.detach().clone()
            self._held.append(tensor)
        return known

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """An operation without values, and its value besides, where all that it reads has some."""
        if not self._known(args, kwargs):
            if func.overloadpacket.__name__.endswith("_"):
                self._values.pop(id(args[0]), None)  # what is written into it is not known
            return func(*args, **kwargs)
        try:
            out = func(*args, **kwargs)
        except DATA_DEPENDENT:
            made = self._compute(func, args, kwargs)
            if made is None:
                raise
            return self._like(made)
        if _is_small(out):
            self._keep(out, self._compute(func, args, kwargs))
        return out

    def assume(self, tensor: torch.Tensor, value: bool) -> None:
        """Take all of a tensor to have one value."""
        with _disable_current_modes():
            self._values[id(tensor)] = torch.tensor(value).expand(tuple(tensor.shape))

    def _known(self, args: Any, kwargs: Any) -> bool:
        for each in (*args, *kwargs.values()):
            tensors = each if isinstance(each, list | tuple) else (each,)
            if any(isinstance(leaf, torch.Tensor) and self.of(leaf) is None for leaf in tensors):
                return False
        return True

    def _compute(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """What an operation on constants gives; none where it cannot be told."""
        name = func.overloadpacket.__name__
        if name in _REFUSED:
            return None
        with _disable_current_modes(), torch.no_grad():
            real_args, real_kwargs = tree_map(self._real, (args, kwargs))
            try:
                made = func(*real_args, **real_kwargs)
            except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
                return None
            if name in _RANDOM and isinstance(made, torch.Tensor):
                made.fill_(_ALMOST_ONE)
        return made

    def _like(self, made: Any) -> Any:
        """Tensors without values for those whose shape depends on values."""
        if not isinstance(made, torch.Tensor):
            return [self._like(each) for each in made] if isinstance(made, tuple | list) else made
        out = torch.empty(tuple(made.shape), dtype=made.dtype)
        self._keep(out, made)
        return out

    def _keep(self, out: Any, made: Any) -> None:
        """Remember the values of what an operation gave."""
        pairs = [(out, made)] if isinstance(out, torch.Tensor) else zip(_list(out), _list(made), strict=False)
        for tensor, value in pairs:
            if isinstance(tensor, FakeTensor) and isinstance(value, torch.Tensor) and value.numel() <= _LARGEST:
                self._values[id(tensor)] = value

    def _real(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.of(leaf)
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def _is_small(out: Any) -> bool:
    tensors = [each for each in tree_flatten(out)[0] if isinstance(each, torch.Tensor)]
    return bool(tensors) and all(each.numel() <= _LARGEST for each in tensors)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else []
