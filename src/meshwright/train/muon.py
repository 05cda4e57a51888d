"""Muon's arithmetic on a whole matrix."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MOMENTUM = 0.95
"""Where a recipe names none (Jordan 2024)."""
_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan 2024, "the design of the coefficients"
_STEPS = 5
_TINY = 1e-7


def orthogonalised(matrix: Tensor) -> Tensor:
    """The nearest half-orthogonal matrix, roughly: five Newton-Schulz steps X ← aX + (bA + cA²)X with A = XXᵀ, which
    bring every singular value to between about 0.7 and 1.2 (Jordan 2024). [rows, columns], in bfloat16 as is usual, in
    float64 for proofs.

    >>> values = torch.linalg.svdvals(orthogonalised(torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.5, 2.0]]).double()))
    >>> bool(((values > 0.6) & (values < 1.3)).all())
    True
    """
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide if matrix.dtype == torch.float64 else wide.bfloat16()
    x = x / x.norm().clamp(min=_TINY)
    for _ in range(_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def scale_of(shape: Sequence[int]) -> float:
    """What makes an update as large as AdamW's: 0.2 √max(rows, columns) (Liu 2025, equation 4).

    >>> scale_of((400, 100))
    4.0
    """
    return 0.2 * math.sqrt(max(shape))
