"""The rows that were predicted worst, part by part."""

from collections.abc import Sequence

from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.units import show_seconds
from meshwright.validation.score import Scored


def worst_blocks(scored: Sequence[Scored], count: int) -> list[Block]:
    """The rows whose step time is furthest off, the worst first: as many times too long as too short is as bad."""
    timed = [each for each in scored if each.log_error is not None]
    worst = sorted(timed, key=lambda each: -abs(each.log_error or 0.0))[:count]
    if not worst:
        return [Lines("", ("no row has a time to compare with",), "warning")]
    return [block for each in worst for block in _blocks(each)]


def _blocks(each: Scored) -> list[Block]:
    row, predicted, error = each.row, each.predicted, each.error
    assert predicted is not None
    assert error is not None
    facts = [
        ("where", f"{row.place}, {row.source}, grade {row.grade}"),
        ("what", f"{row.text('model_name')}, {row.count('n_gpus'):,} x {each.device}, {row.text('framework')}"),
        ("batch", f"{row.text('global_batch')} samples of {row.text('seq_len')}, {row.text('precision')}"),
        ("plan", predicted.plan),
        ("measured", show_seconds(row.seconds or 0.0)),
        ("predicted", f"{show_seconds(predicted.seconds)}, {error:+.1%}"),
    ]
    if predicted.full_recompute:
        facts.append(("with full recompute", show_seconds(predicted.full_recompute)))
    if row.text("notes"):
        facts.append(("notes", row.text("notes")))
    rows = [
        (part, show_seconds(seconds), f"{seconds / predicted.seconds:.1%}") for part, seconds in predicted.parts.items()
    ]
    rows.append(("step", show_seconds(predicted.seconds), "100.0%"))
    return [Facts(f"{row.place}: {error:+.1%}", tuple(facts)), table("", "part | >time | >share", rows, total=True)]
