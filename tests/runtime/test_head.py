"""The loss of logits that exist in pieces is that of whole ones."""

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from meshwright.runtime.head import LossInPieces, WholeLoss

WIDTH, WORDS, LENGTH = 6, 11, 9


def _head(*, bias: bool) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WORDS, bias=bias).double()


def _given() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, WORDS, (3, LENGTH), generator=generator)
    return x, targets.masked_fill(torch.rand(3, LENGTH, generator=generator) < 0.3, -100)


def _run(head: nn.Linear, loss: WholeLoss) -> list[Tensor]:
    x, loss.targets = _given()
    x.requires_grad_()
    found = loss(head(x)) / 7
    found.backward()
    return [found.detach(), *(each.grad for each in (x, *head.parameters()) if each.grad is not None)]


@pytest.mark.parametrize("pieces", [2, 4, 9, 20])
@pytest.mark.parametrize("bias", [True, False])
def test_pieces_have_the_loss_and_the_gradients_of_the_whole(pieces: int, bias: bool) -> None:
    wanted = _run(_head(bias=bias), WholeLoss(None, None))
    head = _head(bias=bias)
    found = _run(head, LossInPieces(head, pieces, None, None))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_without_gradients_pieces_have_the_loss_of_the_whole() -> None:
    head = _head(bias=True)
    loss = LossInPieces(head, 4, None, None)
    x, loss.targets = _given()
    wanted = _run(_head(bias=True), WholeLoss(None, None))[0] * 7
    with torch.no_grad():
        torch.testing.assert_close(loss(head(x)), wanted, rtol=1e-12, atol=1e-14)


class _Largest(TorchFunctionMode):
    """Notes the largest result of a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if func is nn.functional.linear:
            self.numbers = max(self.numbers, out.numel())
        return out


def test_no_more_than_a_piece_of_the_logits_exists_at_a_time() -> None:
    head = _head(bias=True)
    loss = LossInPieces(head, 3, None, None)
    with _Largest() as largest:
        _run(head, loss)
    assert largest.numbers == 3 * LENGTH // 3 * WORDS
