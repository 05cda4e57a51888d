"""What differs between two plans."""

from collections.abc import Sequence
from typing import Any

from meshwright.plan.diff import Change
from meshwright.report.blocks import Block, Lines, table


def changes_data(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The changes as plain data."""
    return [{"where": change.where, "before": change.before, "after": change.after} for change in changes]


def changes_blocks(changes: Sequence[Change]) -> list[Block]:
    """The same for a person."""
    if not changes:
        return [Lines("", ("The plans mean the same.",), "good")]
    rows = [(change.where, change.before, change.after) for change in changes]
    return [table("", "where | before | after", rows)]
