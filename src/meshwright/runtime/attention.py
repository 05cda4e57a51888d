"""Exact attention that a plan cuts: by heads (`ulysses`), by positions around a ring (`cp`), with dropout from the
counter.

Put in through transformers' AttentionInterface. Without a ring and dropout it is torch's own attention, on this rank's
heads.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.plan.spec import Placed
from meshwright.runtime.mesh import Peers
from meshwright.runtime.place import Place
from meshwright.runtime.randomness import Counter
from meshwright.runtime.ring import Draw, Ring, attend_around
from meshwright.runtime.sequence import Sequence

NAME = "meshwright"
"""Its name among transformers' kinds of attention."""
_CORE = "_meshwright_core"


def install_attention(module: nn.Module, place: Place, sequence: Sequence, counter: Counter) -> None:
    """Let all attention modules of this rank's layers use it."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    module.set_attn_implementation(NAME)  # type: ignore[operator]
    for placed in place.here:
        for path in place.layer(placed).modules:
            for name, inner in module.get_submodule(path).named_modules(prefix=path):
                if hasattr(inner, "is_causal"):
                    vars(inner)[_CORE] = Core(placed, place, sequence, counter, f"{name}.attn_dropout")


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Of transformers' signature: [samples, heads, positions, width] each → [samples, positions, heads, width]."""
    core: Core = vars(module)[_CORE]
    out = core(query, key, value, kwargs.get("scaling"), kwargs.get("dropout", 0.0))
    return out.transpose(1, 2).contiguous(), None


@dataclass(frozen=True)
class Core:
    """The attention of one layer on this rank."""

    placed: Placed
    place: Place
    sequence: Sequence
    counter: Counter
    site: str

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
        """[samples, heads, this rank's positions between, width] each → the same of values."""
        heads = self.place.peers(self.placed, "sequence")
        if heads is None:
            return self._attend(query, key, value, scale, dropout)
        copies = max(1, heads.size // key.shape[1])
        key, value = (each.repeat_interleave(copies, 1) for each in (key, value))
        query, key, value = (_to_heads(each, heads) for each in (query, key, value))
        return _to_positions(self._attend(query, key, value, scale, dropout), heads)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
        scale = scale if scale is not None else query.shape[-1] ** -0.5
        ring, mask = self.place.peers(self.placed, "context"), self.sequence.mask(self.placed)
        if ring is None and not dropout:
            return _whole((query, key, value), scale, mask, self.sequence.at_attention(self.placed))
        draw = Draw(dropout, self.counter.key(self.site), *self._first(query), query.shape[1] * self._head_ranks)
        around = Ring(ring, self.sequence.around_the_ring(self.placed), scale, mask, draw if dropout else None)
        out, _ = attend_around(query, key, value, around)
        return out

    def _first(self, query: Tensor) -> tuple[int, int]:
        """The first sample and head at hand."""
        place = 0
        for peers in (self.place.peers(self.placed, "tensor"), self.place.peers(self.placed, "sequence")):
            place = place * peers.size + peers.place if peers else place
        return self.counter.first_sample + self.place.first_sample(self.placed), place * query.shape[1]

    @property
    def _head_ranks(self) -> int:
        """Ranks over which the heads are divided."""
        peers = (self.place.peers(self.placed, purpose) for purpose in ("tensor", "sequence"))
        return torch.Size(each.size for each in peers if each).numel()


def _whole(inputs: tuple[Tensor, Tensor, Tensor], scale: float, mask: Tensor | None, positions: Tensor) -> Tensor:
    """Causal attention of query, key and value where all positions are at hand, in any order."""
    query, key, value = inputs
    in_order = bool((positions[1:] > positions[:-1]).all())
    if mask is None and in_order:
        shared = query.shape[1] != key.shape[1]
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=shared
        )
    allowed = (positions[:, None] >= positions)[None, None]
    if mask is not None:
        allowed = allowed & mask[:, None, None, positions]
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scale)


class _Turned(torch.autograd.Function):
    """[samples, heads, positions, width]: equal pieces along one dim become pieces along another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers, sent: int, received: int) -> Tensor:
        ctx.peers, ctx.sent, ctx.received = peers, sent, received
        return torch.cat(peers.all_to_all(list(x.chunk(peers.size, sent))), received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        pieces = ctx.peers.all_to_all(list(gradients[0].chunk(ctx.peers.size, ctx.received)))
        return torch.cat(pieces, ctx.sent), None, None, None


def _to_heads(x: Tensor, peers: Peers) -> Tensor:
    """All heads of a run of positions → a run of heads at all positions (Jacobs 2023, section 3.1)."""
    return _Turned.apply(x, peers, 1, 2)  # type: ignore[no-untyped-call, no-any-return]


def _to_positions(x: Tensor, peers: Peers) -> Tensor:
    """The way back."""
    return _Turned.apply(x, peers, 2, 1)  # type: ignore[no-untyped-call, no-any-return]
