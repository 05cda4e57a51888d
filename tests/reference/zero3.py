"""ZeRO stage 3 (Rajbhandari 2020, section 5.3; Zhao 2023, FSDP, section 3): ranks keep shards alone. A layer is
gathered for its forward and freed, and so again for its backward, whose gradients go to the shards. The last
goes back at once, unless other micro-batches come between.
"""

import torch.distributed as dist
from torch import Tensor

from tests.reference.model import Job, Model, Passed, chain
from tests.reference.parameters import Gatherable, Kept, descend, shard, square, taken, zeros
from tests.reference.pieces import reduce_numbers


def share(model: Model, rank: int, size: int) -> Kept:
    """A shard of each layer."""
    return {str(place): shard(layer, rank, size, model.job.sums) for place, layer in enumerate(model)}


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Layer by layer through each micro-batch and back, then update the shards."""
    rank, size, total, group = dist.get_rank(), dist.get_world_size(), zeros(), dist.new_group(group_desc="shard")
    layers, shards = [Gatherable(layer) for layer in model], list(kept.values())

    def gather(place: int) -> None:
        dist.all_gather_single(layers[place].room(), shards[place].detach().to(job.compute), group=group)

    def forward(tokens: Tensor, labels: Tensor) -> Passed:
        passed = chain(model, tokens, labels, before=gather, after=lambda place: layers[place].free())
        if job.forwards_first:
            layers[-1].free()
        return passed

    def backward(passed: Passed, gradient: Tensor | None = None) -> None:
        for place, (x, out) in reversed(list(enumerate(passed))):
            if place + 1 < len(passed) or job.forwards_first:
                gather(place)
            out.backward(gradient)
            gradient, mine = x.grad, zeros(len(shards[place]), dtype=job.sums)
            dist.reduce_scatter_single(mine, taken(model[place].parameters(), job.sums), group=group)
            shards[place].grad += mine
            layers[place].free()

    own = (tuple(part.chunk(size)[rank] for part in batch) for batch in job.batches())
    runs = (forward(*batch) for batch in own)
    for passed in list(runs) if job.forwards_first else runs:
        total += passed[-1][1].detach()
        backward(passed)
    reduce_numbers(loss=total, norm=(squares := square(shards, size)))
    descend(shards, squares)
    return total
