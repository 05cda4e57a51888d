"""Context parallelism by ring attention (Liu 2023, section 3): each rank has a run of positions of every sample, and
all but attention needs no others. Gradients of the parameters are summed once a step, as under data parallelism.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from tests.reference.model import KV_HEADS, LENGTH, Job, Model
from tests.reference.parameters import Kept, descend, everything, give, taken, zeros
from tests.reference.pieces import reduce_numbers
from tests.reference.ring import Ring

share = everything


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Forward and backward over all micro-batches, reduce once, update."""
    rank, size, total = dist.get_rank(), dist.get_world_size(), zeros()
    group, gradient = (dist.new_group(group_desc=name) for name in ("context", "gradient"))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Ring.apply(q.unflatten(1, (KV_HEADS, -1)), torch.stack([k, v]).unsqueeze(3), group).flatten(1, 2)

    def reduce() -> None:
        for layer in model:
            dist.all_reduce(summed := taken(layer.parameters(), job.sums), group=gradient)
            give(layer.parameters(), summed)

    for tokens, labels in job.batches():
        mine = (part.chunk(size, 1)[rank] for part in (tokens, labels))
        loss = model(*mine, attend=attend, first=rank * LENGTH // size)
        loss.backward()
        total += loss.detach()
    reduce()
    reduce_numbers(loss=total)
    descend(kept.values())
    return total
