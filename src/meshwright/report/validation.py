"""Predicted against measured, source by source: as tables for a person, and as data with errors as fractions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.report.blocks import Block, Lines, table
from meshwright.validation.any_anchor import WANTED_BIAS, WANTED_MEDIAN, any_anchors
from meshwright.validation.assumed import assumptions_of
from meshwright.validation.memory_kinds import figure_of
from meshwright.validation.metrics import WORDS, Errors, Fits, Metrics, Source, full_recompute_error, sources_of
from meshwright.validation.ranking import LARGE, SMALL, Ranking
from meshwright.validation.score import Scored

_NONE = "-"


def validation_blocks(scored: Sequence[Scored], calibration: str) -> list[Block]:
    """All tables; rows of grade B stand apart."""
    sources = sources_of(scored)
    found: list[Block | None] = [
        Lines("", (f"calibration {calibration}",)),
        time_table(sources, "A"),
        ranking_table(sources, "A"),
        time_table(sources, "B"),
        assumptions_table(scored, "B"),
        memory_table(sources),
        fits_table(sources),
        rows_table(sources),
        skipped_table(sources),
    ]
    return [block for block in found if block is not None]


def _percent(value: float | None, sign: str = "") -> str:
    return _NONE if value is None else f"{value:{sign}.1%}"


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"


def _of_grade(sources: Sequence[Source], grade: str) -> Iterator[tuple[str, Metrics]]:
    return ((source.name, source.grades[grade]) for source in sources if grade in source.grades)


def time_table(sources: Sequence[Source], grade: str) -> Block | None:
    """Errors of the step time; of grade B with those under full recompute beside them."""
    found = [(name, each, each.time) for name, each in _of_grade(sources, grade) if each.time]
    if not found:
        return None
    beside = any(each.full_recompute for _, each, _ in found)
    rows = [
        (name, *_errors(time), _number(each.spearman), *([_beside(each.full_recompute)] * beside))
        for name, each, time in found
    ]
    last = " | >rows, median and bias under full recompute" if beside else ""
    columns = f"source | >rows | >median | >mean | >p90 | >bias | >rank correlation{last}"
    return table(f"error of the step time, rows of grade {grade}", columns, rows)


def _errors(found: Errors) -> tuple[str, ...]:
    size = (_percent(found.median), _percent(found.mean), _percent(found.p90))
    return (f"{found.rows:,}", *size, _percent(found.bias, "+"))


def _beside(found: Errors | None) -> str:
    return f"{found.rows:,}, {found.median:.1%}, {found.bias:+.1%}" if found else _NONE


def any_anchor_table(scored: Sequence[Scored], least: int = 20) -> Block | None:
    """Anchored errors of grade A with each row as the anchor in turn, where there are so many rows."""
    rows = [
        (
            *kind,
            f"{found.rows:,}",
            _percent(found.median),
            f"{found.low:.1%} to {found.high:.1%}",
            _percent(found.met),
        )
        for kind, found in sorted(any_anchors(scored, "A", least).items())
    ]
    wanted = f"within {WANTED_MEDIAN:.0%} and a bias of {WANTED_BIAS:.0%}"
    columns = f"source | device | >anchors | >middle of the medians | >their middle half | >{wanted}"
    title = "anchored by each row in turn, rows of grade A"
    return table(title, columns, rows) if rows else None


def ranking_table(sources: Sequence[Source], grade: str) -> Block | None:
    """How well configurations of one model on one machine are ranked."""
    rows = []
    for name, each in _of_grade(sources, grade):
        for least, ranking in ((SMALL, each.groups), (LARGE, each.large_groups)):
            if ranking.groups:
                rows.append((name, f"{least} or more", f"{ranking.groups:,}", *_ranking(ranking)))
    title = "ranking of configurations of one model, machine and work: rank correlation, cost of the first choice"
    columns = "source | >rows | >groups | >median | >lowest | >regret | >within 3% | >worst"
    return table(title, columns, rows) if rows else None


def _ranking(found: Ranking) -> tuple[str, ...]:
    correlation = (_number(found.spearman), _number(found.lowest))
    return (*correlation, *map(_percent, (found.regret, found.close, found.worst)))


def memory_table(sources: Sequence[Source]) -> Block | None:
    """Errors of peak memory by the kind of figure."""
    rows = [
        (source.name, grade, kind, found.figure, *_errors(found.errors))
        for source in sources
        for grade, each in source.grades.items()
        for kind, found in each.memory.items()
    ]
    columns = "source | grade | measured | compared with | >rows | >median | >mean | >p90 | >bias"
    return table("error of peak memory", columns, rows) if rows else None


def fits_table(sources: Sequence[Source]) -> Block | None:
    """Runs that fitted and that ran out, by the verdict."""
    rows = [
        (source.name, grade, *_fits(each.fits))
        for source in sources
        for grade, each in source.grades.items()
        if each.rows
    ]
    verdicts = " | ".join(f">{ran}: {word}" for ran in ("fitted", "ran out") for word in WORDS)
    columns = f"source | grade | {verdicts} | >called impossible | >balanced accuracy"
    title = "what was said of runs that fitted, and of runs that ran out of memory"
    return table(title, columns, rows) if rows else None


def _fits(found: Fits) -> tuple[str, ...]:
    counts = [str(kind[word]) for kind in (found.fitted, found.ran_out) for word in WORDS]
    return (*counts, str(found.impossible), _percent(found.balanced_accuracy))


def rows_table(sources: Sequence[Source]) -> Block:
    """Rows by source, and what became of them."""
    counts = {source.name: _counts(source) for source in sources}
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = [(name, *(f"{number:,}" for number in numbers)) for name, numbers in counts.items()]
    return table("rows", "source | >rows | >used, grade A | >used, grade B | >skipped", rows, total=True)


def _counts(source: Source) -> list[int]:
    used = [source.grades[grade].rows if grade in source.grades else 0 for grade in "AB"]
    return [source.rows, *used, source.rows - source.used]


def skipped_table(sources: Sequence[Source]) -> Block | None:
    """Why rows were skipped."""
    rows = [(source.name, f"{count:,}", reason) for source in sources for reason, count in source.skipped.items()]
    return table("rows skipped", "source | >rows | reason", rows) if rows else None


def assumptions_table(scored: Sequence[Scored], grade: str) -> Block | None:
    """What was taken for rows where their sources do not say it."""
    used = [each.row for each in scored if each.used and each.row.grade == grade]
    found = Counter((row.source, said) for row in used for said in assumptions_of(row))
    rows = [(source, f"{count:,}", said) for (source, said), count in sorted(found.items())]
    return table(f"what is taken for rows of grade {grade}", "source | >rows | taken", rows) if rows else None


def validation_data(scored: Sequence[Scored], calibration: str, *, whole: bool = True) -> dict[str, Any]:
    """Sources and rows as plain data: errors as fractions, seconds, bytes. `whole`: whether nobody stopped it."""
    return {
        "calibration": calibration,
        "whole": whole,
        "sources": {source.name: _source(source) for source in sources_of(scored)},
        "rows": [_row(each) for each in scored],
    }


def _source(source: Source) -> dict[str, Any]:
    """The figures of the best grade that has rows, then all by grade."""
    grades = {grade: _metrics(each) for grade, each in source.grades.items()}
    speaks = grades[source.grade] if source.grade else _NO_METRICS
    return {
        "rows_used": source.used,
        "rows_skipped": source.rows - source.used,
        "grade": source.grade,
        **{name: value for name, value in speaks.items() if name != "rows_used"},
        "skipped": source.skipped,
        "grades": grades,
    }


def _metrics(found: Metrics) -> dict[str, Any]:
    time = found.time
    return {
        "rows_used": found.rows,
        "rows_timed": time.rows if time else 0,
        "median_abs_error": time and time.median,
        "mean_abs_error": time and time.mean,
        "p90_abs_error": time and time.p90,
        "bias": time and time.bias,
        "spearman": found.spearman,
        "full_recompute": found.full_recompute and found.full_recompute._asdict(),
        "groups": {str(SMALL): found.groups._asdict(), str(LARGE): found.large_groups._asdict()},
        "memory_median_abs_error": found.all_memory and found.all_memory.median,
        "memory": {kind: {"figure": each.figure} | each.errors._asdict() for kind, each in found.memory.items()},
        "fit_confusion": {
            "fitted": found.fits.fitted,
            "ran_out": found.fits.ran_out,
            "called_impossible": found.fits.impossible,
            "balanced_accuracy": found.fits.balanced_accuracy,
        },
    }


_NO_METRICS = dict.fromkeys(
    ("median_abs_error", "mean_abs_error", "bias", "spearman", "memory_median_abs_error", "fit_confusion")
)


def _row(each: Scored) -> dict[str, Any]:
    row, predicted = each.row, each.predicted
    measured = {
        "place": row.place,
        "source": row.source,
        "grade": row.grade,
        "model": row.text("model_name"),
        "device": each.device or None,
        "devices": row.count("n_gpus"),
        "family": each.family,
        "lab": each.lab,
        "skipped": each.reason or None,
        "measured_s": row.seconds,
        "measured_memory_bytes": row.memory_bytes,
        "mem_kind": row.text("mem_kind") or None,
        "ran_out": row.ran_out,
    }
    if predicted is None:
        return measured
    figure = figure_of(row.text("mem_kind"))
    memory = getattr(predicted.footprint, figure) if figure else None
    return measured | {
        "predicted_s": predicted.seconds,
        "error": each.error,
        "log_error": each.log_error,
        "full_recompute_s": predicted.full_recompute,
        "full_recompute_error": full_recompute_error(each),
        "memory_figure": figure,
        "predicted_memory_bytes": list(memory) if memory else None,
        "predicted_device_bytes": list(predicted.footprint.device),
        "capacity_bytes": predicted.capacity,
        "memory_error": each.memory_error,
        "running_out": predicted.running_out,
        "verdict": predicted.word,
        "parts": predicted.parts,
        "plan": predicted.plan,
        "assumed": list(assumptions_of(row)),
    }
