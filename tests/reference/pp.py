"""Pipeline parallelism with one forward, one backward (Narayanan 2021, section 2.2.1, PipeDream-flush): each rank has a
run of layers; activations go to the next, their gradients to the one before. A rank does as many forwards ahead as
there are stages after it. The two copies of a tied matrix sum their gradients once a step.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from tests.reference.model import HIDDEN, LENGTH, Job, Model
from tests.reference.parameters import Kept, descend, give, square, stage, staged, taken, zeros
from tests.reference.pieces import reduce_numbers

share = staged


def send(x: Tensor | None, to: int, cuts: list[dist.ProcessGroup]) -> tuple[object, object]:
    """To a neighbour, if there is one, without waiting for it. What it returns must live until the message is there."""
    return x, dist.isend(x.detach(), to, group=cuts[min(to, dist.get_rank())]) if 0 <= to <= len(cuts) else None


def receive(x: Tensor, source: int, cuts: list[dist.ProcessGroup]) -> Tensor:
    """From a neighbour into x, if there is one."""
    if 0 <= source <= len(cuts):
        dist.recv(x, source, group=cuts[min(source, dist.get_rank())])
    return x


def step(model: Model, kept: Kept, job: Job) -> Tensor | None:
    """Forwards and backwards in turn, then update. The last rank tells the loss to all."""
    rank, size, total, waiting, sent = dist.get_rank(), dist.get_world_size(), zeros(), [], []
    cuts = [dist.new_group([place, place + 1], group_desc="pipeline") for place in range(size - 1)]
    ends = dist.new_group([0, size - 1], group_desc="tied")

    def forward(tokens: Tensor, labels: Tensor) -> None:
        x = receive(zeros(len(tokens), LENGTH, HIDDEN, dtype=job.compute), rank - 1, cuts).requires_grad_()
        waiting.append((x, out := model.run(stage(rank, size), x if rank else tokens, labels)))
        sent.append(send(out, rank + 1, cuts))

    def backward() -> Tensor:
        x, out = waiting.pop(0)
        out.backward(receive(torch.ones_like(out), rank + 1, cuts))
        sent.append(send(x.grad, rank - 1, cuts))
        return out.detach()

    def reduce() -> None:
        dist.all_reduce(summed := taken([model[0].weight], job.sums), group=ends)
        give([model[0].weight], summed)

    ahead = min(size - 1 - rank, job.micro_batches)
    for number, batch in enumerate([*job.batches(), *[None] * ahead]):
        if batch:
            forward(*batch)
        if number >= ahead:
            total += backward().sum()
    if job.tied and rank in (0, size - 1):
        reduce()
    reduce_numbers(loss=(told := total if rank == size - 1 else zeros()), norm=(squares := square(kept.values(), 1)))
    descend(kept.values(), squares)
    return told
