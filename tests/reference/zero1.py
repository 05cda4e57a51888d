"""ZeRO stage 1 (Rajbhandari 2020, section 5.1, P_os): every rank has the whole model and gradients, and updates its own
shard. Gradients are reduced to the shards once a step; the new shards are gathered after the update.
"""

import torch.distributed as dist
from torch import Tensor

from tests.reference.model import Job, Model
from tests.reference.parameters import Kept, descend, everything, flat, put, shard, square, taken, zeros
from tests.reference.pieces import reduce_numbers

share = everything


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Forward and backward over all micro-batches, reduce to shards, update these, gather."""
    rank, size, total = dist.get_rank(), dist.get_world_size(), zeros()
    group = dist.new_group(group_desc="shard")
    shards = [shard(layer, rank, size, job.sums) for layer in model]

    def reduce() -> None:
        for layer, own in zip(model, shards, strict=True):
            dist.reduce_scatter_single(own.grad, taken(layer.parameters(), job.sums), group=group)

    def update() -> None:
        for layer, own in zip(model, shards, strict=True):
            dist.all_gather_single(whole := flat(layer), own.detach().to(job.compute), group=group)
            put(layer, whole)

    for tokens, labels in job.batches():
        loss = model(tokens.chunk(size)[rank], labels.chunk(size)[rank])
        loss.backward()
        total += loss.detach()
    reduce()
    reduce_numbers(loss=total, norm=(squares := square(shards, size)))
    descend(shards, squares)
    update()
    return total
