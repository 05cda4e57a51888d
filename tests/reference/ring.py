"""Attention over positions that lie on several ranks (Liu 2023, section 3): keys and values of all ranks go round a
ring, and attention is summed up block by block. In backward they go round again, and their gradients behind them, home.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.reference.model import DIM


def passed(x: Tensor, group: Any) -> Tensor:
    """x goes to the next rank; what the one before has comes."""
    rank, size, got = dist.get_rank(group), group.size(), torch.empty_like(x)
    sides = [(dist.isend, x, (rank + 1) % size), (dist.irecv, got, (rank - 1) % size)]
    for work in dist.batch_isend_irecv([dist.P2POp(*side, group) for side in sides]):
        work.wait()
    return got


def scores(q: Tensor, k: Tensor, turn: int, group: Any) -> Tensor:
    """Of a rank's queries with the keys of the rank that is `turn` places before it; later positions are hidden."""
    rank, size, length = dist.get_rank(group), group.size(), q.shape[-2]
    mine, theirs = (torch.arange(length) + place * length for place in (rank, (rank - turn) % size))
    return (q @ k.mT * DIM**-0.5).masked_fill(mine[:, None] < theirs, -torch.inf)


class Ring(torch.autograd.Function):
    """Queries [batch, kv heads, queries of each, seq, dim], keys and values [2, batch, kv heads, 1, seq, dim]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, group: Any) -> Tensor:
        """A block's share is weighed by its part of the sum of exponentials so far (Liu 2023, section 2)."""
        out, total, own = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf), kv
        for turn in range(group.size()):
            kv = passed(kv, group) if turn else kv
            found = scores(q, kv[0], turn, group)
            before, total = total, torch.logaddexp(total, found.logsumexp(-1, keepdim=True))
            out = out * (before - total).exp() + (found - total).exp() @ kv[1]
        ctx.group = group
        ctx.save_for_backward(q, own, out, total)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of queries, and of keys and values: the rank's own part stays, the others' come round."""
        q, kv, out, total = ctx.saved_tensors
        for_q, parts = torch.zeros_like(q), []
        for turn in range(ctx.group.size()):
            kv = passed(kv, ctx.group) if turn else kv
            weights = (scores(q, kv[0], turn, ctx.group) - total).exp()
            slopes = weights * (gradient @ kv[1].mT - (gradient * out).sum(-1, keepdim=True)) * DIM**-0.5
            for_q += slopes @ kv[0]
            part = torch.stack([slopes.mT @ q, weights.mT @ gradient]).sum(3, keepdim=True)
            parts.append(part + passed(parts[-1], ctx.group) if turn > 1 else part)
        return for_q, parts[0] + passed(parts[-1], ctx.group), None
