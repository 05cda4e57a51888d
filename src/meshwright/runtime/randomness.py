"""Dropout that the plan does not change: a mask from a counter of seed, step, place in the model, sample, position,
channel.

Every rank computes the mask of just the values that it holds, and gets what one process would.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

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


def _key(seed: int, step: int, site: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{site}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def keep_mask(shape: torch.Size, probability: float, *, key: int, first_sample: int, device: torch.device) -> Tensor:
    """True where a value stays: [samples, ...], the first of which is `first_sample` of its step."""
    per_sample = shape[1:].numel()
    start = first_sample * per_sample
    places = torch.arange(start, start + shape.numel(), dtype=torch.int64, device=device)
    draws = _shifted(random_words(places * _STRIDE + key), 64 - _BITS)
    return (draws >= round(probability * (1 << _BITS))).view(shape)


class Counter:
    """Where a run stands: the step, and the first sample of the current micro-batch in its step."""

    def __init__(self, seed: int) -> None:
        self.seed, self.step, self.first_sample = seed, 0, 0


def install_dropout(module: nn.Dropout, site: str, counter: Counter, held: Callable[[], int]) -> None:
    """Let a dropout module draw from the counter. `held` gives this rank's first sample within the micro-batch."""

    def forward(x: Tensor) -> Tensor:
        if not module.training or not module.p:
            return x
        key = _key(counter.seed, counter.step, site)
        first = counter.first_sample + held()
        keep = keep_mask(x.shape, module.p, key=key, first_sample=first, device=x.device)
        return x * keep / (1 - module.p)

    vars(module)["forward"] = forward
