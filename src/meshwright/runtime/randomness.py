"""Dropout that the plan does not change: a mask from a counter of seed, step, place in the model, sample, position,
channel.

Every rank computes the mask of just the values that it holds, and gets what one process would.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB as signed 64-bit
_STRIDE = -7046029254386353131  # 0x9E3779B97F4A7C15
_BITS = 24


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right of 64-bit words."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def random_words(counter: Tensor) -> Tensor:
    """64 random bits for each counter (SplitMix64's finaliser: Steele, Lea, Flood 2014, figure 17)."""
    x = (counter ^ _shifted(counter, 30)) * _MIX[0]
    x = (x ^ _shifted(x, 27)) * _MIX[1]
    return x ^ _shifted(x, 31)


def keep_mask(shape: torch.Size, probability: float, *, key: int, first_sample: int, device: torch.device) -> Tensor:
    """True where a value stays: [samples, ...], the first of which is `first_sample` of its step."""
    per_sample = shape[1:].numel()
    start = first_sample * per_sample
    places = torch.arange(start, start + shape.numel(), dtype=torch.int64, device=device)
    return kept_at(places, probability, key).view(shape)


def kept_at(places: Tensor, probability: float, key: int) -> Tensor:
    """True where a value stays, by the number of its place in the whole step."""
    draws = _shifted(random_words(places * _STRIDE + key), 64 - _BITS)
    return draws >= round(probability * (1 << _BITS))


def places_of(axes: Sequence[tuple[Tensor, int]]) -> Tensor:
    """The numbers of places in a whole tensor: for each dim, which of its indices are at hand, and its whole size."""
    numbers = axes[0][0]
    for indices, size in axes[1:]:
        numbers = numbers[..., None] * size + indices
    return numbers


class Counter:
    """Where a run stands: the step, and the first sample of the current micro-batch in its step."""

    def __init__(self, seed: int) -> None:
        self.seed, self.step, self.first_sample = seed, 0, 0

    def key(self, site: str) -> int:
        """What the draws of a place in the model start from."""
        digest = hashlib.blake2b(f"{self.seed}/{self.step}/{site}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)


Positions = tuple[Tensor, int]
"""Which positions of a sample are at hand, and how many there are."""


def _all_positions() -> Positions | None:
    return None


def install_dropout(
    module: nn.Dropout,
    site: str,
    counter: Counter,
    held: Callable[[], int],
    positions: Callable[[], Positions | None] = _all_positions,
) -> None:
    """Let a dropout module draw from the counter. `held` gives this rank's first sample within the micro-batch,
    `positions` those of x [samples, positions, channels], where they are not all.
    """

    def forward(x: Tensor) -> Tensor:
        if not module.training or not module.p:
            return x
        key = counter.key(site)
        first, some = counter.first_sample + held(), positions()
        if some is None:
            keep = keep_mask(x.shape, module.p, key=key, first_sample=first, device=x.device)
        else:
            samples = torch.arange(first, first + x.shape[0], device=x.device)
            channels = torch.arange(x.shape[2], device=x.device)
            keep = kept_at(places_of([(samples, 0), some, (channels, x.shape[2])]), module.p, key)
        return x * keep / (1 - module.p)

    vars(module)["forward"] = forward


class _DrawnCalls(TorchFunctionMode):
    """While active, calls of torch's dropout draw from the counter, the first, second, ... of a module's forward."""

    def __init__(self, site: str, counter: Counter, held: tuple[int, int]) -> None:
        super().__init__()
        self.site, self.counter, self.held, self.calls = site, counter, held, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """In place of `functional.dropout(x, p, training)` of [samples, ...] or [samples · positions, channels]."""
        if func is not functional.dropout:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | (kwargs or {})
        x, probability = given["input"], given.get("p", 0.5)
        if not given.get("training", True) or not probability:
            return x
        self.calls += 1
        key, (first, samples) = self.counter.key(f"{self.site}.dropout.{self.calls}"), self.held
        shape = torch.Size((samples, x.numel() // samples))
        first += self.counter.first_sample
        keep = keep_mask(shape, probability, key=key, first_sample=first, device=x.device)
        return x * keep.view(x.shape) / (1 - probability)


def draw_calls(module: nn.Module, site: str, counter: Counter, held: Callable[[], tuple[int, int]]) -> None:
    """Let the dropout that a module calls as a function draw from the counter. `held` gives the first of this rank's
    samples within the micro-batch, and their number.
    """
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _DrawnCalls(site, counter, held()):
            return inner(*args, **kwargs)

    vars(module)["forward"] = forward
