"""How much of an anchored figure is the luck of its anchor: the same with every other row in its place."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.validation.score import Scored

WANTED_MEDIAN, WANTED_BIAS = 0.06, 0.05
"""What an anchored source is asked to keep to: the median absolute error and the median signed one."""


class AnyAnchor(NamedTuple):
    """A device of a source, with each of its rows as the anchor in turn."""

    rows: int
    median: float
    """Of the rows' anchored median absolute errors; so are `low` and `high` the quartiles."""
    low: float
    high: float
    met: float
    """The share of anchors with which both targets are met."""


def any_anchor(errors: Sequence[float]) -> AnyAnchor:
    """From the blind errors of at least two rows: those of the others once each has set the factor.

    Two rows predicted right, and one at a half of its time:

    >>> any_anchor([0.0, 0.0, -0.5])
    AnyAnchor(rows=3, median=0.25, low=0.25, high=0.625, met=0.0)
    """
    ratios = 1 + np.asarray(errors, dtype=float)
    found = [np.delete(ratios, place) / ratios[place] - 1 for place in range(len(ratios))]
    medians = np.array([np.median(np.abs(each)) for each in found])
    biases = np.array([np.median(each) for each in found])
    met = np.mean((medians <= WANTED_MEDIAN) & (np.abs(biases) <= WANTED_BIAS))
    low, middle, high = np.percentile(medians, (25, 50, 75))
    return AnyAnchor(len(ratios), float(middle), float(low), float(high), float(met))


def any_anchors(scored: Iterable[Scored], grade: str, least: int = 2) -> dict[tuple[str, str], AnyAnchor]:
    """(source, device) → the same, for those with so many timed rows of a grade."""
    errors: dict[tuple[str, str], list[float]] = {}
    for each in scored:
        if each.timed and each.row.grade == grade and each.error is not None:
            errors.setdefault((each.row.source, each.device), []).append(each.error)
    return {kind: any_anchor(found) for kind, found in errors.items() if len(found) >= least}
