"""Causal attention around a ring (Liu 2023): each rank keeps its queries, and keys and values go from rank to rank.

The parts of a softmax are put together by the logarithms of their sums. Backward computes the weights anew from these
(Dao 2022, section 3.1), so that no weights are kept.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from meshwright.runtime.mesh import Peers
from meshwright.runtime.randomness import kept_at, places_of


class Draw(NamedTuple):
    """Dropout of attention weights [samples, heads, queries, keys], from the counter."""

    probability: float
    key: int
    first_sample: int
    first_head: int
    heads: int
    """Of the whole model."""

    def kept(self, shape: tuple[int, ...], queries: Tensor, keys: Tensor, length: int) -> Tensor:
        """Which of the weights of some queries and keys stay."""
        samples = torch.arange(self.first_sample, self.first_sample + shape[0], device=keys.device)
        heads = torch.arange(self.first_head, self.first_head + shape[1], device=keys.device)
        places = places_of([(samples, 0), (heads, self.heads), (queries, length), (keys, length)])
        return kept_at(places, self.probability, self.key)


Attended = tuple[Tensor, Tensor]
"""Of each query the mean of the values that it saw, and the logarithm of its softmax's sum."""


class Ring(NamedTuple):
    """Who takes part, and what each of them holds."""

    peers: Peers | None
    positions: list[Tensor]
    """Of each rank's keys, in the order of the ring."""
    scale: float
    mask: Tensor | None
    """[samples, all positions] True where a token is real."""
    draw: Draw | None
    known: Attended | None = None
    """What need not be computed anew."""

    @property
    def place(self) -> int:
        """This rank's."""
        return self.peers.place if self.peers else 0

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return sum(len(each) for each in self.positions)


@wrap_torch_function(lambda query, key, value, ring: (query, key, value))
def attend_around(query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Attended:
    """[samples, heads, this rank's positions, width] each → the same of values, and [samples, heads, positions] sums.
    KV heads may be fewer.
    """
    return _Around.apply(query, key, value, ring)  # type: ignore[no-untyped-call, no-any-return]


class _Around(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Attended:
        out, sums = ring.known or _attended(query, key, value, ring)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.mark_non_differentiable(sums)
        ctx.ring = ring
        return out, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, sums = ctx.saved_tensors
        ring, gradient = ctx.ring, gradients[0]
        ours = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        known = gradient, (gradient * out).sum(-1, keepdim=True), sums
        sent: _Sent | None = None
        for source, (keys, values) in _travelling(key, value, ring):
            own = source == ring.place
            there = ours[1:] if own else _gradients_of(sent, ours[1:])
            for pair in _pairs(ring, source):
                _part_gradients(pair, ring, (query, keys, values), known, (ours[0], *there))
            sent = None if own else _Sent(there, ring)
        found = [mine.add_(theirs) for mine, theirs in zip(ours[1:], _gradients_of(sent, ours[1:]), strict=True)]
        return ours[0], found[0], found[1], None


def _attended(query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Attended:
    out = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    sums = query.new_full(query.shape[:-1], -torch.inf)
    for source, (keys, values) in _travelling(key, value, ring):
        for pair in _pairs(ring, source):
            part, part_sums = _part(query, keys, values, pair, ring)
            _merge(out[:, :, pair.queries], sums[:, :, pair.queries], part, part_sums)
    return out, sums


def _gradients_of(sent: "_Sent | None", like: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """What other ranks found for the keys and values at hand so far."""
    return sent.received() if sent else (torch.zeros_like(like[0]), torch.zeros_like(like[1]))


class _Sent:
    """Two tensors on their way to the next rank of a ring, as one message."""

    def __init__(self, tensors: tuple[Tensor, Tensor], ring: Ring) -> None:
        assert ring.peers is not None
        self._shapes = [each.shape for each in tensors]
        self._flat = torch.cat([each.reshape(-1) for each in tensors])
        self._wait = ring.peers.pass_on(self._flat)

    def received(self) -> tuple[Tensor, Tensor]:
        """What the rank before sent."""
        first, second = torch.split(self._wait(), [shape.numel() for shape in self._shapes])
        return first.view(self._shapes[0]), second.view(self._shapes[1])


def _travelling(key: Tensor, value: Tensor, ring: Ring) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
    """Keys and values with the place in the ring that they come from: one's own first; the next come meanwhile."""
    here, ranks = (key, value), len(ring.positions)
    for hop in range(ranks):
        coming = _Sent(here, ring) if hop < ranks - 1 else None
        yield (ring.place - hop) % ranks, here
        if coming is not None:
            here = coming.received()


class _Pair(NamedTuple):
    """Runs of queries and of keys of which some see some."""

    queries: slice
    keys: slice
    query_positions: Tensor
    key_positions: Tensor
    is_full: bool
    """Whether all see all."""


def _pairs(ring: Ring, source: int) -> Iterator[_Pair]:
    ours, theirs = ring.positions[ring.place], ring.positions[source]
    for queries in _runs(ours):
        for keys in _runs(theirs):
            seen_by, seen = ours[queries], theirs[keys]
            if seen[0] <= seen_by[-1]:
                yield _Pair(queries, keys, seen_by, seen, bool(seen[-1] <= seen_by[0]))


def _runs(positions: Tensor) -> list[slice]:
    """Cut where a position does not follow the one before."""
    breaks = (positions[1:] != positions[:-1] + 1).nonzero().flatten() + 1
    ends = [0, *breaks.tolist(), len(positions)]
    return [slice(first, end) for first, end in pairwise(ends)]


def _weights(query: Tensor, keys: Tensor, pair: _Pair, ring: Ring) -> Tensor:
    """Scores of a pair, minus infinity where nothing is seen."""
    scores = query @ keys.transpose(-1, -2) * ring.scale
    if not pair.is_full:
        scores = scores.masked_fill(pair.query_positions[:, None] < pair.key_positions, -torch.inf)
    if ring.mask is not None:
        scores = scores.masked_fill(~ring.mask[:, None, None, pair.key_positions], -torch.inf)
    return scores


def _drop(weights: Tensor, pair: _Pair, ring: Ring) -> Tensor:
    if ring.draw is None:
        return weights
    keep = ring.draw.kept(weights.shape, pair.query_positions, pair.key_positions, ring.length)
    return weights * keep / (1 - ring.draw.probability)  # in the weights' dtype: a mask divided is float32


def _grouped(x: Tensor, heads: int) -> Tensor:
    """KV heads, each as often as queries share it."""
    return x.repeat_interleave(heads // x.shape[1], 1)


def _part(query: Tensor, keys: Tensor, values: Tensor, pair: _Pair, ring: Ring) -> tuple[Tensor, Tensor]:
    """Attention of a pair by itself, and the logarithms of its sums."""
    heads = query.shape[1]
    scores = _weights(query[:, :, pair.queries], _grouped(keys[:, :, pair.keys], heads), pair, ring)
    sums = scores.logsumexp(-1)
    weights = _drop((scores - _finite(sums)[..., None]).exp(), pair, ring)
    return weights @ _grouped(values[:, :, pair.keys], heads), sums


def _finite(sums: Tensor) -> Tensor:
    """Zero where nothing was seen."""
    return sums.masked_fill(sums == -torch.inf, 0.0)


def _merge(out: Tensor, sums: Tensor, part: Tensor, part_sums: Tensor) -> None:
    """Put another part of the keys to what was seen before."""
    both = torch.logaddexp(sums, part_sums)
    before, new = ((each - _finite(both)).exp()[..., None] for each in (sums, part_sums))
    out.mul_(before).add_(part * new)
    sums.copy_(both)


def _part_gradients(
    pair: _Pair,
    ring: Ring,
    inputs: tuple[Tensor, Tensor, Tensor],
    known: tuple[Tensor, Tensor, Tensor],
    into: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Add a pair's gradients of queries, keys and values."""
    heads, groups = inputs[0].shape[1], inputs[1].shape[1]
    query = inputs[0][:, :, pair.queries]
    keys, values = (_grouped(each[:, :, pair.keys], heads) for each in inputs[1:])
    gradient, inner, sums = (each[:, :, pair.queries] for each in known)
    weights = (_weights(query, keys, pair, ring) - _finite(sums)[..., None]).exp()
    of_weights = _drop(gradient @ values.transpose(-1, -2), pair, ring)
    of_scores = weights * (of_weights - inner) * ring.scale
    of_keys, of_values = of_scores.transpose(-1, -2) @ query, _drop(weights, pair, ring).transpose(-1, -2) @ gradient
    into[0][:, :, pair.queries] += of_scores @ keys
    for whole, part in zip(into[1:], (of_keys, of_values), strict=True):
        shared = part.reshape(part.shape[0], groups, heads // groups, *part.shape[2:])
        whole[:, :, pair.keys] += shared.sum(2)
