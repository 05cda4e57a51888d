"""The figures of a source: errors of step time and memory, ranking, and whether what fits was said to fit."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.validation.memory_kinds import Figure, figure_of
from meshwright.validation.ranking import LARGE, Ranking, rank_groups, spearman
from meshwright.validation.score import Scored

WORDS = ("fits", "may not fit", "does not fit")
"""Of verdicts."""
_LIKELY = 0.5  # a probability of running out above which a run counts as called impossible


class Errors(NamedTuple):
    """Of predictions, as fractions of what was measured."""

    rows: int
    median: float
    """Of absolute errors, as are mean and p90."""
    mean: float
    p90: float
    bias: float
    """The median of signed errors."""


def errors_of(errors: Sequence[float]) -> Errors | None:
    """None where there are no errors.

    >>> errors_of([0.1, -0.2, 0.4])
    Errors(rows=3, median=0.2, mean=0.23333333333333336, p90=0.36000000000000004, bias=0.1)
    """
    if not errors:
        return None
    signed = np.asarray(errors, dtype=float)
    size = np.abs(signed)
    middle, mean, high = float(np.median(size)), float(size.mean()), float(np.percentile(size, 90))
    return Errors(len(errors), middle, mean, high, float(np.median(signed)))


class Fits(NamedTuple):
    """Runs that fitted and runs that ran out of memory, by the verdict's word."""

    fitted: dict[str, int]
    ran_out: dict[str, int]
    impossible: int
    """Runs that fitted, though they were said to run out more likely than not."""
    caught: int
    """Runs that ran out, and were said to."""

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean of the shares of both kinds that were called right (more likely than not); none without both."""
        fitted, ran_out = sum(self.fitted.values()), sum(self.ran_out.values())
        if not fitted or not ran_out:
            return None
        return ((fitted - self.impossible) / fitted + self.caught / ran_out) / 2


def fits_of(scored: Iterable[Scored]) -> Fits:
    """The table of all predicted rows."""
    fitted, ran_out = dict.fromkeys(WORDS, 0), dict.fromkeys(WORDS, 0)
    impossible = caught = 0
    for each in scored:
        if each.predicted:
            likely = each.predicted.running_out > _LIKELY
            (ran_out if each.row.ran_out else fitted)[each.predicted.word] += 1
            caught += likely and each.row.ran_out
            impossible += likely and not each.row.ran_out
    return Fits(fitted, ran_out, impossible, caught)


class MemoryErrors(NamedTuple):
    """Errors of one kind of memory figure."""

    figure: Figure
    """Ours that it is compared with."""
    errors: Errors


@dataclass(frozen=True)
class Metrics:
    """Of the rows of one grade of a source."""

    rows: int
    """Predicted ones."""
    time: Errors | None
    full_recompute: Errors | None
    """Of rows that do not say what is recomputed, had all of it been."""
    spearman: float | None
    """Over all rows."""
    groups: Ranking
    large_groups: Ranking
    memory: dict[str, MemoryErrors]
    """By `mem_kind`."""
    all_memory: Errors | None
    fits: Fits


def metrics_of(scored: Iterable[Scored]) -> Metrics:
    """Of these rows, whatever their source and grade; those that were skipped count nowhere."""
    used = [each for each in scored if each.used]
    timed = [(each.predicted.seconds, each.row.seconds) for each in used if each.timed and each.predicted]
    predicted, measured = [one for one, _ in timed], [other or 0.0 for _, other in timed]
    return Metrics(
        rows=len(used),
        time=errors_of([each.error for each in used if each.error is not None]),
        full_recompute=errors_of([error for each in used if (error := full_recompute_error(each)) is not None]),
        spearman=spearman(predicted, measured),
        groups=rank_groups(used),
        large_groups=rank_groups(used, LARGE),
        memory=_memory(used),
        all_memory=errors_of([each.memory_error for each in used if each.memory_error is not None]),
        fits=fits_of(used),
    )


def full_recompute_error(scored: Scored) -> float | None:
    """The error of the step time under full recompute; none where the row says what is recomputed."""
    full = scored.predicted.full_recompute if scored.predicted else None
    return full / scored.row.seconds - 1 if full and scored.timed and scored.row.seconds else None


def _memory(used: Sequence[Scored]) -> dict[str, MemoryErrors]:
    kinds: dict[str, list[float]] = {}
    for each in used:
        if each.memory_error is not None:
            kinds.setdefault(each.row.text("mem_kind"), []).append(each.memory_error)
    found = {kind: (figure_of(kind), errors_of(errors)) for kind, errors in kinds.items()}
    return {kind: MemoryErrors(figure, errors) for kind, (figure, errors) in found.items() if figure and errors}


class Source(NamedTuple):
    """All that is said of one source."""

    name: str
    rows: int
    """In its files."""
    skipped: dict[str, int]
    """Reason → rows, the most frequent first."""
    grades: dict[str, Metrics]
    """Of grades A and B, as far as rows of them were predicted."""

    @property
    def grade(self) -> str | None:
        """The grade that speaks for the source: A, where it has such rows."""
        return next(iter(self.grades), None)

    @property
    def used(self) -> int:
        """Predicted rows."""
        return sum(each.rows for each in self.grades.values())


def sources_of(scored: Sequence[Scored]) -> list[Source]:
    """The sources by name."""
    found: dict[str, list[Scored]] = {}
    for each in scored:
        found.setdefault(each.row.source, []).append(each)
    return [_source(name, found[name]) for name in sorted(found)]


def _source(name: str, scored: Sequence[Scored]) -> Source:
    reasons = Counter(each.reason for each in scored if not each.used)
    grades = sorted({each.row.grade for each in scored if each.used})
    by_grade = {grade: metrics_of(each for each in scored if each.row.grade == grade) for grade in grades}
    return Source(name, len(scored), dict(reasons.most_common()), by_grade)
