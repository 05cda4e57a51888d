"""Pipeline parallelism with one forward, one backward (Narayanan 2021, section 2.2.1, PipeDream-flush): each rank has a
run of layers; activations go to the next, their gradients to the one before. A rank does as many forwards ahead as there
are stages after it. The two copies of a tied matrix sum their gradients once a step.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from tests.reference.model import HIDDEN, LENGTH, Job, Model
from tests.reference.parameters import Kept, descend, give, square, stage, staged, taken, zeros
from tests.reference.pieces import reduce_numbers

share = staged


def step(model: Model, kept: Kept, job: Job) -> Tensor | None:
    """Forwards and backwards in turn, then update. The last rank knows the loss."""
    rank, size, total, last = dist.get_rank(), dist.get_world_size(), zeros(), dist.get_world_size() - 1
    cuts = [dist.new_group([place, place + 1], group_desc="pipeline") for place in range(last)]
    ahead, waiting, sent, tied = (
        min(last - rank, job.micro_batches),
        [],
        [],
        dist.new_group([0, last], group_desc="tied"),
    )

    def forward(tokens: Tensor, labels: Tensor) -> None:
        x = tokens
        if rank:
            dist.recv(x := zeros(len(tokens), LENGTH, HIDDEN, dtype=job.compute), rank - 1, group=cuts[rank - 1])
        out = model.run(stage(rank, size), x.requires_grad_(rank > 0), labels)
        waiting.append((x, out))
        if rank < last:
            sent.append((out, dist.isend(out.detach(), rank + 1, group=cuts[rank])))

    def backward() -> Tensor:
        x, out = waiting.pop(0)
        gradient = torch.ones_like(out)
        if rank < last:
            dist.recv(gradient, rank + 1, group=cuts[rank])
        out.backward(gradient)
        if rank:
            sent.append((x, dist.isend(x.grad, rank - 1, group=cuts[rank - 1])))
        return out.detach()

    def reduce() -> None:
        if job.tied and rank in (0, last):
            dist.all_reduce(summed := taken([model[0].weight], job.sums), group=tied)
            give([model[0].weight], summed)

    for number, batch in enumerate([*job.batches(), *[None] * ahead]):
        if batch:
            forward(*batch)
        if number >= ahead:
            total += backward().sum()
    reduce()
    reduce_numbers(norm=(squares := square(kept.values(), 1)))
    descend(kept.values(), squares)
    return total if rank == last else None
