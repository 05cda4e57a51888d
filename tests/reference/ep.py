"""Expert parallelism (Lepikhin 2020, GShard, section 3): experts are spread over neighbouring ranks, which have samples
of their own otherwise. Positions are sent to their experts, and the answers back. What all ranks have sums its
gradients over all of them, an expert over the ranks that have it.
"""

import torch.distributed as dist
from torch import Tensor

from tests.reference.model import Experts, Job, Model
from tests.reference.parameters import Kept, descend, give, square, taken, zeros
from tests.reference.pieces import Exchange, reduce_numbers

WAYS = 2
"""Ranks over which the experts are spread: 0 and 1, 2 and 3."""


def share(model: Model, rank: int, size: int) -> Kept:
    """The model with a run of each layer's experts."""
    for layer in [*model][1:-1]:
        for parameter in (layer.experts.gate_up, layer.experts.down):
            parameter.data, parameter.copies = parameter.data.chunk(WAYS)[rank % WAYS].clone(), size // WAYS
    return dict(model.named_parameters())


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """Forward and backward over all micro-batches, reduce once, update."""
    rank, size, total, gradient = dist.get_rank(), dist.get_world_size(), zeros(), dist.new_group(group_desc="gradient")
    neighbours = [dist.new_group([first, first + 1], group_desc="expert") for first in (0, 2)][rank // WAYS]
    alike = [dist.new_group([place, place + WAYS], group_desc="gradient") for place in (0, 1)][rank % WAYS]

    def through(experts: Experts, copies: Tensor) -> Tensor:
        """[experts, copies, hidden]: experts are cut and copies joined, and the other way."""
        return Exchange.apply(experts.answer(Exchange.apply(copies, 0, 1, neighbours)), 1, 0, neighbours)

    def reduce() -> None:
        for block in model.blocks():
            for spread in (False, True):
                some = [parameter for parameter in block if hasattr(parameter, "copies") == spread]
                if some:
                    dist.all_reduce(summed := taken(some, job.sums), group=alike if spread else gradient)
                    give(some, summed)

    for tokens, labels in job.batches():
        loss = model(tokens.chunk(size)[rank], labels.chunk(size)[rank], through=through)
        loss.backward()
        total += loss.detach()
    reduce()
    reduce_numbers(loss=total, norm=(squares := square(kept.values(), size)))
    descend(kept.values(), squares)
    return total
