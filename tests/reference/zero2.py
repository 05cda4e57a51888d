"""ZeRO stage 2 (Rajbhandari 2020, section 5.2, P_os+g): as stage 1, but no rank has whole gradients. As soon as a
layer's backward is done, in every micro-batch, its gradients are reduced to the shards and freed.
"""

import torch.distributed as dist
from torch import Tensor

from tests.reference.model import Job, Model, Passed, chain
from tests.reference.parameters import Kept, descend, everything, flat, put, shard, square, taken, zeros
from tests.reference.pieces import reduce_numbers

share = everything


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Layer by layer through each micro-batch and back, then update the shards and gather."""
    rank, size, total = dist.get_rank(), dist.get_world_size(), zeros()
    group = dist.new_group(group_desc="shard")
    shards = [shard(layer, rank, size, job.sums) for layer in model]

    def backward(passed: Passed, gradient: Tensor | None = None) -> None:
        for layer, own, (x, out) in reversed(list(zip(model, shards, passed, strict=True))):
            out.backward(gradient)
            gradient, mine = x.grad, zeros(len(own), dtype=job.sums)
            dist.reduce_scatter_single(mine, taken(layer.parameters(), job.sums), group=group)
            own.grad += mine

    def update() -> None:
        for layer, own in zip(model, shards, strict=True):
            dist.all_gather_single(whole := flat(layer), own.detach().to(job.compute), group=group)
            put(layer, whole)

    for tokens, labels in job.batches():
        passed = chain(model, tokens.chunk(size)[rank], labels.chunk(size)[rank])
        total += passed[-1][1].detach()
        backward(passed)
    reduce_numbers(loss=total, norm=(squares := square(shards, size)))
    descend(shards, squares)
    update()
    return total
