"""A robust least-squares fit of constants to measured step times, in logarithms.

    minimise  sum_i w_i rho(log predicted_i - log measured_i)  +  sum_j ((log c_j - log guess_j) / spread_j)^2

by Levenberg and Marquardt's method (Marquardt 1963), with rho that of soft L1: quadratic for small errors, linear for
large ones (Huber 1964). A source counts with the square root of its rows, so that a large one does not drown the
others. A family of frameworks has one factor beside the constants, whose guess is 1.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEPS = 8
"""A fit ends after so many."""
SCALE = 0.1
"""Errors of the logarithm beyond this count less than by their square."""


@dataclass(frozen=True)
class Parameter:
    """One unknown: a constant, or a family's factor."""

    label: str
    guess: float
    spread: float
    low: float
    high: float
    source: str = ""
    """Where the guess is from."""


@dataclass(frozen=True)
class Fit:
    """What was found."""

    values: tuple[float, ...]
    errors: Floats
    """log predicted - log measured, factors included."""
    at_bound: tuple[str, ...]
    """Labels of those that ended at a bound."""


Predict = Callable[[Floats], Floats]
"""Constants → the logarithm of each row's predicted time."""
Slopes = Callable[[Floats, Floats], Floats]
"""Constants, predictions → their derivatives by the logarithm of each constant, [rows, constants]."""


def weights(sources: Sequence[str]) -> Floats:
    """Of each row: a source with n rows counts as much as sqrt(n) rows.

    >>> weights(["a", "a", "a", "a", "b"]).tolist()
    [0.5, 0.5, 0.5, 0.5, 1.0]
    """
    counts = Counter(sources)
    return np.array([1 / math.sqrt(counts[source]) for source in sources])


def fit(
    parameters: Sequence[Parameter],
    measured: Floats,
    weight: Floats,
    predict: Predict,
    slopes: Slopes,
    *,
    told: Callable[[int, float], None] = lambda step, cost: None,
) -> Fit:
    """`measured`: logarithms of times, [rows]. Ends after so many steps, or when one gains less than a thousandth."""
    guess = np.log([each.guess for each in parameters])
    spread = np.array([each.spread for each in parameters])
    low, high = np.log([each.low for each in parameters]), np.log([each.high for each in parameters])
    at = np.clip(guess, low, high)
    predicted = predict(np.exp(at))
    fresh, damping = True, 1e-3
    cost = _cost(predicted - measured, weight, (at - guess) / spread)
    for step in range(STEPS):
        if fresh:  # slopes take as many predictions as there are constants: old ones serve while they lead downwards
            jacobian = slopes(np.exp(at), predicted)
        errors, pulled = predicted - measured, (at - guess) / spread
        robust = weight / np.sqrt(1 + (errors / SCALE) ** 2) / SCALE**2
        curvature = jacobian.T @ (robust[:, None] * jacobian) + np.diag(1 / spread**2)
        slope = jacobian.T @ (robust * errors) + pulled / spread
        before = cost
        for _ in range(6):
            moved = np.clip(at - np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), slope), low, high)
            tried = predict(np.exp(moved))
            found = _cost(tried - measured, weight, (moved - guess) / spread)
            if found < cost:
                damping /= 3
                at, predicted, cost = moved, tried, found
                break
            damping *= 4
        told(step, cost)
        gained = before - cost
        if gained <= 1e-3 * before and fresh:
            break
        fresh = gained <= 0.01 * before
    bound = tuple(
        each.label for each, value, lo, hi in zip(parameters, at, low, high, strict=True) if value <= lo or value >= hi
    )
    return Fit(tuple(np.exp(at).tolist()), predicted - measured, bound)


def _cost(errors: Floats, weight: Floats, pulled: Floats) -> float:
    return float((weight * 2 * (np.sqrt(1 + (errors / SCALE) ** 2) - 1)).sum() + (pulled**2).sum())
