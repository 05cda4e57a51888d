"""Tensor parallelism with sequence parallelism (Korthikanti 2022, section 4.2.2): between the cut matrices a rank has a
run of positions. They are gathered before the columns and, as only a rank's own are kept, again in backward; sums after
the rows are scattered. Norms and the rows' biases see some positions only: their gradients are summed once a step.
"""

import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

from tests.reference.model import Job, Model, core, gated, one_hot, wide
from tests.reference.parameters import Kept, cut, descend, give, square, taken, zeros
from tests.reference.pieces import reduce_numbers, split_loss
from tests.reference.positions import Columns, Scattered

share = cut


def step(model: Model, kept: Kept, job: Job) -> Tensor:
    """As under tensor parallelism, with activations [seq / size, batch, hidden] between the matrices."""
    rank, size, total, (embed, *layers, head) = dist.get_rank(), dist.get_world_size(), zeros(), model
    group, small, gradient = (dist.new_group(group_desc=name) for name in ("tensor", "loss", "gradient"))

    def columns(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return Columns.apply(x, weight, bias, (group, job.gathered_again))

    def rows(x: Tensor, weight: Tensor) -> Tensor:
        return Scattered.apply(linear(x, weight), group)

    def forward(tokens: Tensor, labels: Tensor) -> Tensor:
        x = rows(one_hot(tokens.T, rank, size, job.compute), embed.weight.T)
        for layer in layers:
            heads = core(columns(layer.norm1(x), *layer.qkv).transpose(0, 1)).transpose(0, 1)
            x = x + rows(heads, layer.o.weight) + layer.o.bias
            x = x + rows(gated(columns(layer.norm2(x), *layer.gates)), layer.down.weight) + layer.down.bias
        logits = columns(head.norm(x), head.matrix.weight, zeros(1, dtype=job.compute))
        return split_loss(wide(logits), labels.T, small)

    def reduce() -> None:
        for layer in (*layers, head):
            whole = [parameter for parameter in layer.parameters() if not hasattr(parameter, "copies")]
            dist.all_reduce(summed := taken(whole, job.sums), group=gradient)
            give(whole, summed)

    for tokens, labels in job.batches():
        loss = forward(tokens, labels)
        loss.backward()
        total += loss.detach()
    reduce()
    reduce_numbers(norm=(squares := square(kept.values(), size)))
    descend(kept.values(), squares)
    return total
