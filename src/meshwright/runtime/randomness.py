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
Share = tuple[int, int]
"""Which of so many equal runs of the channels, or heads, is at hand: (0, 1) are all."""


def _all_positions() -> Positions | None:
    return None


def install_dropout(
    module: nn.Dropout,
    site: str,
    counter: Counter,
    held: Callable[[], int],
    positions: Callable[[], Positions | None] = _all_positions,
    *,
    share: Share = (0, 1),
) -> None:
    """Let a dropout module draw from the counter. `held` gives this rank's first sample within the micro-batch,
    `positions` those of x [samples, positions, channels], where they are not all; `share` is its run of the channels.
    """

    def forward(x: Tensor) -> Tensor:
        if not module.training or not module.p:
            return x
        key = counter.key(site)
        first, some = counter.first_sample + held(), positions()
        if some is None and share == (0, 1):
            keep = keep_mask(x.shape, module.p, key=key, first_sample=first, device=x.device)
        else:
            samples = torch.arange(first, first + x.shape[0], device=x.device)
            some = some or (torch.arange(x.shape[1], device=x.device), x.shape[1])
            keep = kept_at(places_of([(samples, 0), some, _run(x.shape[2], share, x.device)]), module.p, key)
        return x * keep / (1 - module.p)

    vars(module)["forward"] = forward


def _run(count: int, share: Share, device: torch.device) -> tuple[Tensor, int]:
    """The indices of a run of `count`, and how many there are in all."""
    place, ways = share
    return torch.arange(place * count, (place + 1) * count, device=device), ways * count


class _DrawnCalls(TorchFunctionMode):
    """While active, calls of torch's dropout, and attention that drops, draw from the counter: the first, second, ...
    of a module's forward.
    """

    def __init__(self, site: str, counter: Counter, held: tuple[int, int], heads: Share) -> None:
        super().__init__()
        self.site, self.counter, self.held, self.heads, self.calls = site, counter, held, heads, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """In place of `functional.dropout(x, p, training)` of [samples, ...], [samples · positions, channels] or
        weights [samples, heads, queries, keys], and of `scaled_dot_product_attention` with dropout.
        """
        if func is functional.scaled_dot_product_attention:
            given = dict(zip(_ATTENTION, args, strict=False)) | (kwargs or {})
            probability = given.pop("dropout_p", 0.0)
            return self._attend(probability, **given) if probability else func(**given)
        if func is not functional.dropout:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | (kwargs or {})
        x, probability = given["input"], given.get("p", 0.5)
        return self._drop(x, probability) if given.get("training", True) and probability else x

    def _drop(self, x: Tensor, probability: float) -> Tensor:
        self.calls += 1
        key, (first, samples) = self.counter.key(f"{self.site}.dropout.{self.calls}"), self.held
        first += self.counter.first_sample
        if x.dim() == 4 and self.heads != (0, 1):
            numbers = torch.arange(first, first + samples, device=x.device)
            rest = [(torch.arange(size, device=x.device), size) for size in x.shape[2:]]
            keep = kept_at(places_of([(numbers, 0), _run(x.shape[1], self.heads, x.device), *rest]), probability, key)
        else:
            shape = torch.Size((samples, x.numel() // samples))
            keep = keep_mask(shape, probability, key=key, first_sample=first, device=x.device)
        return x * keep.view(x.shape) / (1 - probability)

    def _attend(
        self,
        probability: float,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention in plain products, whose weights [samples, heads, queries, keys] are dropped."""
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
        weights = scores.softmax(-1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
        return self._drop(weights, probability) @ value


_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""What `scaled_dot_product_attention` takes by place."""


def draw_calls(
    module: nn.Module, site: str, counter: Counter, held: Callable[[], tuple[int, int]], heads: Share = (0, 1)
) -> None:
    """Let the dropout that a module calls as a function, or its attention does, draw from the counter. `held` gives the
    first of this rank's samples within the micro-batch, and their number; `heads` tells its run of the heads.
    """
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _DrawnCalls(site, counter, held(), heads):
            return inner(*args, **kwargs)

    vars(module)["forward"] = forward
