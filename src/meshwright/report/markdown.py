"""Blocks as Markdown, for documents that a command writes."""

from collections.abc import Iterable

from meshwright.report.blocks import Block, Facts, Table


def markdown_text(blocks: Iterable[Block]) -> str:
    """The blocks, an empty line between each two, ending with a newline."""
    return "\n\n".join("\n".join(_lines(block)) for block in blocks) + "\n"


def _lines(block: Block) -> list[str]:
    title = [f"**{_cell(block.title)}**", ""] if block.title else []
    if isinstance(block, Table):
        rule = ["--:" if place in block.right else "---" for place in range(len(block.columns))]
        return title + [_row(cells) for cells in (block.columns, rule, *block.rows)]
    if isinstance(block, Facts):
        return title + [f"* {name}: {value}" for name, value in block.rows]
    return title + list(block.lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
