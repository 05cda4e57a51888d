"""The loss on logits cut over the vocabulary equals torch's on the whole."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from meshwright.runtime.loss import IGNORED, count_tokens, next_token_labels, token_loss
from meshwright.runtime.mesh import Peers
from meshwright.train.launch import WorkerPool


def _data(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 16, generator=generator, dtype=torch.float64).to(dtype) * 5
    labels = torch.randint(0, 16, (3, 7), generator=generator)
    labels[0, 2:5] = IGNORED
    return logits, labels


def _split_loss(dtype: torch.dtype) -> tuple[float, Tensor]:
    logits, labels = _data(dtype)
    rank, size = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    assert world is not None
    part = logits.chunk(size, -1)[rank].clone().requires_grad_()
    loss = token_loss(part, next_token_labels(labels), Peers(tuple(range(size)), rank, world))
    loss.backward()
    assert part.grad is not None
    return float(loss), part.grad


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_split_logits_give_the_loss_and_gradient_of_whole_ones(
    pool: WorkerPool, dtype: torch.dtype, tolerance: float
) -> None:
    logits, labels = _data(dtype)
    logits.requires_grad_()
    targets = next_token_labels(labels).flatten()
    wanted = functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum")
    wanted.backward()
    assert logits.grad is not None
    found = pool.run(_split_loss, dtype)
    assert all(abs(loss - float(wanted.detach())) <= tolerance * float(wanted.detach()) for loss, _ in found)
    gradient = torch.cat([part for _, part in found], -1)
    assert float((gradient - logits.grad).abs().max()) <= tolerance


def test_the_last_token_and_ignored_ones_do_not_count() -> None:
    labels = torch.tensor([[5, 6, IGNORED, 8]])
    assert next_token_labels(labels).tolist() == [[6, IGNORED, 8, IGNORED]]
    assert count_tokens(next_token_labels(labels)) == 2
