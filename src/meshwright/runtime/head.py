"""What the last stage makes of its head's output: the loss, of whole logits or of logits that exist in pieces."""

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.model.operators import Linear, Loss
from meshwright.runtime.loss import token_loss
from meshwright.runtime.mesh import Peers
from meshwright.runtime.place import Place
from meshwright.runtime.split import cuts_vocabulary


class WholeLoss:
    """The summed loss of a head's logits against `targets`, which are set before each forward."""

    def __init__(self, vocabulary: Peers | None, size: int | None) -> None:
        self.vocabulary, self.size = vocabulary, size
        self.targets = torch.empty(0)

    def __call__(self, output: Tensor) -> Tensor:
        """Of logits [..., vocabulary or a slice of it] of this rank's samples and positions."""
        return token_loss(output, self.targets, self.vocabulary, self.size)


class LossInPieces(WholeLoss):
    """Of a head that puts out the summed loss in the place of its logits: `pieces` of the positions have theirs one
    after the other, and backward through the logits is done with each before the next.

    The model has to hand on what the head's last module puts out as it is (`runtime-chunks`).
    """

    def __init__(self, head: nn.Module, pieces: int, vocabulary: Peers | None, size: int | None) -> None:
        super().__init__(vocabulary, size)
        self._head, self._logits, self._pieces = head, head.forward, pieces
        vars(head)["forward"] = self._forward

    def __call__(self, output: Tensor) -> Tensor:
        """What the head put out is the loss already."""
        return output

    def _forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return torch.stack([self.of(*piece) for piece in self.cut(x)]).sum()
        parameters = (self._head.weight, self._head.bias)
        learning = [each for each in parameters if isinstance(each, Tensor) and each.requires_grad]
        return _InPieces.apply(self, x, *learning)  # type: ignore[no-untyped-call, no-any-return]

    def cut(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pieces of what the head reads [samples, positions, width], each with its targets."""
        return list(zip(x.chunk(self._pieces, 1), self.targets.chunk(self._pieces, 1), strict=True))

    def of(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss of a piece."""
        return token_loss(self._logits(x), targets, self.vocabulary, self.size)


class _InPieces(torch.autograd.Function):
    """The loss, with its gradients at once: those of a sum are those of its parts, all scaled alike later."""

    @staticmethod
    def forward(ctx: Any, loss: LossInPieces, x: Tensor, *parameters: Tensor) -> Tensor:
        total, of_x = torch.zeros((), dtype=torch.float64, device=x.device), []
        sums = [torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32)) for each in parameters]
        for piece, targets in loss.cut(x.detach()):
            with torch.enable_grad():
                here = piece.detach().requires_grad_()
                found = loss.of(here, targets)
                of_piece, *of_parameters = torch.autograd.grad(found, (here, *parameters))
            total += found.detach()
            of_x.append(of_piece)
            for whole, part in zip(sums, of_parameters, strict=True):
                whole.add_(part)
        ctx.save_for_backward(torch.cat(of_x, 1), *sums)
        ctx.dtypes = [each.dtype for each in (x, *parameters)]
        return total.to(torch.promote_types(x.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return None, *((each * gradients[0]).to(dtype) for each, dtype in pairs)


def head_loss(module: nn.Module, place: Place) -> WholeLoss | None:
    """The loss of the last layer; none where this rank does not hold it. Of logits in pieces it changes the module that
    makes them: cut it before, and shard it after.
    """
    last = place.placed[-1]
    if last.group != place.name:
        return None
    layer, recipe = place.layer(last), place.inputs.recipe
    cut = place.peers(last, "tensor") if cuts_vocabulary(layer) else None
    size = place.inputs.model.vocabulary if cut is not None else None
    if recipe.loss.chunks == 1:
        return WholeLoss(cut, size)
    classes = {op.classes for op in layer.stack.operators if isinstance(op, Loss)}
    linear = next(op for op in layer.stack.operators if isinstance(op, Linear) and op.outputs in classes)
    return LossInPieces(module.get_submodule(layer.module_path(linear.path)), recipe.loss.chunks, cut, size)
