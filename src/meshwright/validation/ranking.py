"""Whether predictions order configurations as measurements do: rank correlation, and what a wrong choice costs."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.validation.rows import Measured
from meshwright.validation.score import Scored

Floats: TypeAlias = NDArray[np.float64]
SMALL, LARGE = 4, 10
"""Rows that a group needs to be ranked, and to be held to the criterion of ranking."""
CLOSE = 0.03
"""Of a group's best time: a choice within this is as good as the best."""
_EQUAL = 1e-9  # relative: predictions that differ by less are one
_SAME = (
    *("model_name", "n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "vocab", "n_experts", "top_k"),
    *("gpu", "gpus_per_node", "n_gpus", "intra_node_link", "inter_node_link"),
    *("seq_len", "global_batch", "precision", "task", "framework"),
)


def group_of(row: Measured) -> tuple[str, ...]:
    """What rows must have in common to be a choice between plans: source, model, machine, work and software."""
    return (row.source, *(row.text(name) for name in _SAME))


def ranks(values: Sequence[float]) -> Floats:
    """Ranks from 1, equal values sharing the mean of theirs.

    >>> ranks([30, 10, 10, 20]).tolist()
    [4.0, 1.5, 1.5, 3.0]
    """
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: Floats = (last - (counts - 1) / 2)[inverse]
    return found


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Rank correlation (Spearman 1904): the correlation of the ranks. None for fewer than 3 pairs, or where one side
    has all values equal.

    >>> spearman([1, 2, 3, 4, 5], [5, 6, 7, 8, 7])
    0.8207826816681233
    """
    if len(one) < 3:
        return None
    a, b = ranks(one), ranks(other)
    a, b = a - a.mean(), b - b.mean()
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread else None


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """How much longer than the best the row takes that is predicted to be fastest; of equal predictions the mean.

    >>> regret([1.0, 2.0, 3.0], [11.0, 10.0, 12.0])
    0.10000000000000009
    """
    guessed, found = np.asarray(predicted), np.asarray(measured)
    chosen = guessed <= guessed.min() * (1 + _EQUAL)
    return float(found[chosen].mean() / found.min()) - 1


class Ranking(NamedTuple):
    """How well groups of comparable rows are ranked."""

    groups: int
    spearman: float | None
    """The median over groups."""
    lowest: float | None
    """Rank correlation of the worst group."""
    regret: float | None
    """The median over groups."""
    close: float | None
    """The share of groups whose regret is within `CLOSE`."""
    worst: float | None
    """The greatest regret."""


def rank_groups(scored: Iterable[Scored], least: int = SMALL) -> Ranking:
    """The ranking of all groups of at least so many timed rows."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for each in scored:
        if each.timed and each.predicted and each.row.seconds:
            groups.setdefault(group_of(each.row), []).append((each.predicted.seconds, each.row.seconds))
    large = [tuple(zip(*pairs, strict=True)) for pairs in groups.values() if len(pairs) >= least]
    regrets = np.array([regret(predicted, measured) for predicted, measured in large])
    found = [value for predicted, measured in large if (value := spearman(predicted, measured)) is not None]
    if not large:
        return Ranking(0, None, None, None, None, None)
    return Ranking(
        groups=len(large),
        spearman=float(np.median(found)) if found else None,
        lowest=min(found, default=None),
        regret=float(np.median(regrets)),
        close=float(np.mean(regrets <= CLOSE)),
        worst=float(regrets.max()),
    )
