"""Data parallelism (Li 2020, PyTorch Distributed, section 3): every rank has the whole model and its own samples; the
gradients of a step are summed over the ranks before the optimizer, layer by layer.
"""

import torch.distributed as dist
from torch import Tensor

from tests.reference.model import Job, Model
from tests.reference.parameters import Kept, descend, everything, give, taken, zeros
from tests.reference.pieces import reduce_numbers

share = everything


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Forward and backward over all micro-batches, reduce once, update."""
    rank, size, total = dist.get_rank(), dist.get_world_size(), zeros()
    group = dist.new_group(group_desc="gradient")

    def reduce() -> None:
        for layer in model:
            dist.all_reduce(summed := taken(layer.parameters(), job.sums), group=group)
            give(layer.parameters(), summed)

    for tokens, labels in job.batches():
        loss = model(tokens.chunk(size)[rank], labels.chunk(size)[rank])
        loss.backward()
        total += loss.detach()
    reduce()
    reduce_numbers(loss=total)
    descend(kept.values())
    return total
