"""Lion, which torch has not: the sign of an interpolation between momentum and gradient."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Lion(torch.optim.Optimizer):
    """Chen 2023, algorithm 2, with decoupled weight decay:
    θ ← θ - η (sign(β₁ m + (1 - β₁) g) + λ θ), then m ← β₂ m + (1 - β₂) g.

    >>> weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> weight.grad = torch.tensor([0.3, -0.1])
    >>> Lion([weight], lr=0.5, betas=(0.9, 0.99), weight_decay=0.1).step()
    >>> weight.detach()
    tensor([ 0.4500, -1.4000])
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take one."""
        assert closure is None, "gradients are there already"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    momentum = state.setdefault("exp_avg", torch.zeros_like(parameter))
                    _update(parameter, parameter.grad, momentum, group)


def _update(parameter: nn.Parameter, gradient: Tensor, momentum: Tensor, group: dict[str, Any]) -> None:
    first, second = group["betas"]
    direction = momentum.lerp(gradient, 1 - first).sign_()
    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
    momentum.lerp_(gradient, 1 - second)
