"""Tensor parallelism (Shoeybi 2019, Megatron-LM, section 3): matrices cut by columns make a slice of the heads or of
the width, matrices cut by rows a part of the sum. f copies in forward and sums gradients in backward; g sums in forward
and copies in backward. Embedding and head are cut by vocabulary; the loss needs three small sums.
"""

import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

from tests.reference.model import Job, Model, core, gated, one_hot, wide
from tests.reference.parameters import Kept, cut, descend, square, zeros
from tests.reference.pieces import Sum, reduce_numbers, split_loss

share = cut


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Slices of every layer, forward and backward, then update; what is whole has the same gradient on every rank."""
    rank, size, total = dist.get_rank(), dist.get_world_size(), zeros()
    group, small = dist.new_group(group_desc="tensor"), dist.new_group(group_desc="loss")
    embed, *layers, head = model

    def f(x: Tensor) -> Tensor:
        return Sum.apply(x, None, group)

    def g(x: Tensor) -> Tensor:
        return Sum.apply(x, group, None)

    def forward(tokens: Tensor, labels: Tensor) -> Tensor:
        x = g(one_hot(tokens, rank, size, job.compute) @ embed.weight)
        for layer in layers:
            x = x + g(linear(core(linear(f(layer.norm1(x)), *layer.qkv)), layer.o.weight)) + layer.o.bias
            x = x + g(linear(gated(linear(f(layer.norm2(x)), *layer.gates)), layer.down.weight)) + layer.down.bias
        return split_loss(wide(head.matrix(f(head.norm(x)))), labels, small)

    for tokens, labels in job.batches():
        loss = forward(tokens, labels)
        loss.backward()
        total += loss.detach()
    reduce_numbers(norm=(squares := square(kept.values(), size)))
    descend(kept.values(), squares)
    return total
