"""How far many processes may be from one, and whether they are.

In float64, where real faults cannot hide in rounding, losses, every gradient and every parameter after three steps
agree to 1e-9 of the tensor's largest value. In float32, and in bf16 with masters in float32, they agree to three times
what the one process differs by between orders of summation.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.train.launch import WorkerPool
from tests.parity.harness import Case, Fault, Outcome, many_processes, one_process

EXACT, SPREADS = 1e-9, 3.0
NOTHING, NOTHING_IN_BF16 = 1e-6, 1e-3
"""Of the largest value of all tensors: what a tensor must reach to be more than rounding. A key's bias has no gradient,
since a softmax takes no notice of what all its scores have in common.
"""
BLIND = SPREADS / (SPREADS + 1)
"""From here a limit of gradients proves nothing: one that is left out or doubled differs by 1, more or
less the spread.
"""


def relative(found: Tensor, wanted: Tensor, least: float = 0.0) -> float:
    """The largest difference as a share of the wanted tensor's largest value, which counts as `least` at least."""
    largest = max(float(wanted.abs().max()), least)
    return float((found.double() - wanted.double()).abs().max()) / (largest or 1.0)


def worst(found: dict[str, Tensor], wanted: dict[str, Tensor], nothing: float = NOTHING) -> tuple[float, str]:
    """The tensor that differs most, and by how much."""
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    least = nothing * max(float(tensor.abs().max()) for tensor in wanted.values())
    return max((relative(found[name], wanted[name], least), name) for name in wanted)


@dataclass(frozen=True)
class Verdict:
    """The largest differences, each over its limit's unit, and the sentence that says them."""

    loss: float
    norm: float
    gradient: tuple[float, str]
    parameter: tuple[float, str]
    limits: "Limits"

    @property
    def holds(self) -> bool:
        """True where every difference is within its limit. Not-a-number is never within."""
        found = (self.loss, self.norm, self.gradient[0], self.parameter[0])
        return all(difference <= limit for difference, limit in zip(found, self.limits, strict=True))

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.1e} (limit {self.limits[0]:.1e}), norm {self.norm:.1e} ({self.limits[1]:.1e}), "
            f"gradient {self.gradient[0]:.1e} in {self.gradient[1]} ({self.limits[2]:.1e}), "
            f"parameter {self.parameter[0]:.1e} in {self.parameter[1]} ({self.limits[3]:.1e})"
        )


Limits = tuple[float, float, float, float]
"""What loss, norm, gradients and parameters may differ by."""


def own_spread(case: Case, wanted: Outcome) -> Limits:
    """How much one process differs from itself, at most, over a few orders of summation. Samples keep theirs where
    dropout is drawn by their places.
    """
    back = not (case.dropout or case.attention_dropout)
    orders = [one_process(case, backwards=back, pieces=pieces) for pieces in (1, 4)]
    orders.append(one_process(case, pieces=2))
    verdicts = [judge(other, wanted, (0.0,) * 4, _nothing(case)) for other in orders]
    return (
        max(each.loss for each in verdicts),
        max(each.norm for each in verdicts),
        max(each.gradient[0] for each in verdicts),
        max(each.parameter[0] for each in verdicts),
    )


def limits_of(case: Case, wanted: Outcome) -> Limits:
    """In float64 an absolute limit; else so many times what one process differs by from itself."""
    if case.dtype == torch.float64:
        return EXACT, EXACT, EXACT, EXACT
    least = torch.finfo(torch.float32).eps
    loss, norm, gradient, parameter = (SPREADS * max(each, least) for each in own_spread(case, wanted))
    assert gradient < BLIND, f"a gradient may differ by {gradient:.1e}, which proves nothing"
    return loss, norm, gradient, parameter


def _nothing(case: Case) -> float:
    return NOTHING_IN_BF16 if case.dtype == torch.bfloat16 else NOTHING


def judge(found: Outcome, wanted: Outcome, limits: Limits, nothing: float = NOTHING) -> Verdict:
    """Compare a rank's outcome with the reference."""
    loss = max(abs(a - b) / abs(b) for a, b in zip(found.losses, wanted.losses, strict=True))
    norm = max(abs(a - b) / abs(b) for a, b in zip(found.norms, wanted.norms, strict=True))
    gradient = worst(found.gradients, wanted.gradients, nothing)
    return Verdict(loss, norm, gradient, worst(found.parameters, wanted.parameters, nothing), limits)


def prove(pool: WorkerPool, case: Case, fault: Fault = nullcontext, model: Any = None) -> list[Verdict]:
    """Run a case and judge every rank. `model` is as `many_processes` has it."""
    return judge_all(case, pool.run(many_processes, case, fault, model, timeout=90.0))


def judge_all(case: Case, found: Iterable[Outcome]) -> list[Verdict]:
    """Compare every rank's outcome of a case with the reference."""
    wanted = one_process(case)
    limits = limits_of(case, wanted)
    return [judge(each, wanted, limits, _nothing(case)) for each in found]
