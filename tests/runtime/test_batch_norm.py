"""Batch norms over several ranks are those of the whole micro-batch."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from meshwright.runtime.batch_norm import share_statistics
from meshwright.runtime.mesh import Peers
from meshwright.train.launch import WorkerPool

RANKS = 4
Values = tuple[Tensor, ...]


def _batch() -> tuple[Tensor, Tensor]:
    """Samples of unlike means, far from zero, and what their outputs' gradient is."""
    generator = torch.Generator().manual_seed(3)
    x, gradient = (torch.randn(8, 3, 5, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    return x + torch.linspace(50, 60, 8)[:, None, None, None], gradient


def _norm(momentum: float | None, *, affine: bool) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, momentum=momentum, affine=affine).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def _run(norm: nn.BatchNorm2d, x: Tensor, gradient: Tensor) -> Values:
    """Outputs and gradients of two forwards; parameters' gradients; what it keeps."""
    x = x.clone().requires_grad_()
    norm(x + 1)
    out = norm(x)
    out.backward(gradient)
    norm.eval()
    assert x.grad is not None
    learnt = [parameter.grad for parameter in norm.parameters() if parameter.grad is not None]
    return (out.detach(), x.grad, norm(x).detach()), (*learnt,), (*norm.buffers(),)  # type: ignore[return-value]


def _on_a_rank(momentum: float | None, affine: bool) -> Values:
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.group.WORLD
    assert world is not None
    norm = _norm(momentum, affine=affine)
    share_statistics(norm, Peers(tuple(range(RANKS)), rank, world))
    return _run(norm, *(each.chunk(RANKS)[rank] for each in _batch()))


@pytest.mark.parametrize(("momentum", "affine"), [(0.1, True), (None, False)])
def test_ranks_that_hold_parts_of_a_batch_do_what_one_does_with_all(
    pool: WorkerPool, momentum: float | None, affine: bool
) -> None:
    wanted = _run(_norm(momentum, affine=affine), *_batch())
    found = pool.run(_on_a_rank, momentum, affine)
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-11)
    for place in range(3):
        close(torch.cat([each[0][place] for each in found]), wanted[0][place])
    for place in range(2 if affine else 0):
        close(sum(each[1][place] for each in found), wanted[1][place])
    for each in found:
        close(each[2], wanted[2])
