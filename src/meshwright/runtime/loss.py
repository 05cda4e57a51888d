"""The loss: cross entropy summed over what counts, in float32 or wider, on logits that may be cut over the
vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from meshwright.runtime.mesh import Peers

IGNORED = -100
"""The label of a token that does not count."""


def next_token_labels(labels: Tensor) -> Tensor:
    """[samples, length] → the same shape: each position's label is the token after it; the last has none."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def as_given(labels: Tensor) -> Tensor:
    """Labels that stand where the model's values do."""
    return labels


TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "causal_lm": next_token_labels,
    "masked_lm": as_given,
    "seq2seq": as_given,
    "classification": as_given,
}
"""The recipe's kinds of loss → what labels become: what each value that the model puts out should be [samples, length],
of a classification [samples].
"""


def count_tokens(targets: Tensor) -> int:
    """How many targets count: of a classification samples."""
    return int((targets != IGNORED).sum())


def token_loss(logits: Tensor, targets: Tensor, vocabulary: Peers | None = None, size: int | None = None) -> Tensor:
    """Summed cross entropy.

    `logits` [..., vocabulary or this rank's slice of it], `targets` [...], of `TARGETS`. Divide by `count_tokens` of
    the whole global batch. `size` is that of the vocabulary, where slices are filled up to be equal.
    """
    targets = targets.flatten()
    wide = logits.flatten(0, -2)
    wide = wide if wide.dtype == torch.float64 else wide.float()
    if vocabulary is None:
        return functional.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")
    if size is not None and vocabulary.size * wide.shape[1] > size:
        own = torch.arange(wide.shape[1], device=wide.device) + vocabulary.place * wide.shape[1]
        wide = wide.masked_fill(own >= size, -torch.inf)
    return _SplitCrossEntropy.apply(wide, targets, vocabulary)  # type: ignore[no-untyped-call, no-any-return]


class _SplitCrossEntropy(torch.autograd.Function):
    """Cross entropy on logits [tokens, slice]: three small all-reduces (largest, sum of exponentials, target's
    logit).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, peers: Peers) -> Tensor:
        rows = logits.shape[1]
        largest = peers.all_reduce(logits.max(dim=1).values, dist.ReduceOp.MAX)
        exponentials = (logits - largest[:, None]).exp()
        total = peers.all_reduce(exponentials.sum(dim=1))
        local = targets - peers.place * rows
        mine = (local >= 0) & (local < rows)
        local = local.masked_fill(~mine, 0)
        picked = logits.gather(1, local[:, None])[:, 0].masked_fill(~mine, 0)
        losses = total.log() + largest - peers.all_reduce(picked)
        counts = targets != IGNORED
        ctx.save_for_backward(exponentials.div_(total[:, None]), local, mine, counts)
        return losses.masked_fill(~counts, 0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, mine, counts = ctx.saved_tensors
        gradient = probabilities.clone()
        gradient.scatter_add_(1, local[:, None], -mine[:, None].to(gradient.dtype))
        return gradient * (counts[:, None] * gradients[0]), None, None
