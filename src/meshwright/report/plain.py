"""Blocks as aligned text: what is seen through a pipe. No colours, no boxes, no wrapping: a line is a record."""

from collections.abc import Iterable, Sequence

from meshwright.errors import printable
from meshwright.report.blocks import Block, Facts, Table

_GAP = "  "


def plain_text(blocks: Iterable[Block]) -> str:
    """The blocks, an empty line between each two, ending with a newline."""
    return "\n\n".join("\n".join(_lines(block)) for block in blocks) + "\n"


def _lines(block: Block) -> list[str]:
    title = [printable(block.title)] if block.title else []
    if isinstance(block, Facts):
        return title + _aligned(block.rows, frozenset())
    if isinstance(block, Table):
        return title + _aligned((block.columns, *block.rows), block.right)
    return title + [printable(line) for line in block.lines]


def _aligned(rows: Sequence[Sequence[str]], right: frozenset[int]) -> list[str]:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [_GAP.join(_pad(row, widths, right)).rstrip() for row in cells]


def _pad(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> list[str]:
    pairs = enumerate(zip(row, widths, strict=True))
    return [cell.rjust(width) if place in right else cell.ljust(width) for place, (cell, width) in pairs]
