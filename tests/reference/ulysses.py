"""DeepSpeed Ulysses (Jacobs 2023, section 3.1): each rank has a run of positions of every sample. Before attention,
queries, keys and values change to all positions of a run of heads, and its output changes back. Gradients of the
parameters are summed once a step, as under data parallelism.
"""

import torch.distributed as dist
from torch import Tensor

from tests.reference.model import LENGTH, Job, Model, causal
from tests.reference.parameters import Kept, descend, everything, give, taken, zeros
from tests.reference.pieces import Exchange, reduce_numbers

share = everything


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Forward and backward over all micro-batches, reduce once, update."""
    rank, size, total = dist.get_rank(), dist.get_world_size(), zeros()
    group, gradient = (dist.new_group(group_desc=name) for name in ("sequence", "gradient"))

    def attend(*inputs: Tensor) -> Tensor:
        """[batch, heads, seq, dim]: heads are cut and positions joined, and the other way."""
        return Exchange.apply(causal(*(Exchange.apply(x, 1, 2, group) for x in inputs)), 2, 1, group)

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
