"""Blocks as rich's tables, on a terminal. A terminal too narrow for a table gets its lines as they are."""

from collections.abc import Iterable
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from meshwright.errors import printable
from meshwright.report.blocks import Block, Facts, Lines, Table
from meshwright.report.plain import plain_text

_TONES = {"plain": "", "good": "bold green", "bad": "bold red", "warning": "yellow"}
_WHOLE = 26  # letters; a column whose cells are no longer than this is never broken
_BROKEN = 14  # letters that a broken column needs at least


def print_blocks(blocks: Iterable[Block]) -> None:
    """Print the blocks, each with its heading, and an empty line between each two."""
    console = Console(highlight=False)
    if console.no_color:  # NO_COLOR: nothing but text
        console = Console(highlight=False, color_system=None)
    for place, block in enumerate(blocks):
        if place:
            console.print()
        if isinstance(block, Table) and _least_width(block) > console.width:
            console.print(Text(plain_text([block]).rstrip()), soft_wrap=True)
            continue
        if block.title:
            console.print(Text(printable(block.title), style="bold"))
        console.print(_body(block))


def _body(block: Block) -> RenderableType:
    if isinstance(block, Facts):
        return _facts(block)
    return _table(block) if isinstance(block, Table) else _lines(block)


def _facts(block: Facts) -> RenderableType:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in block.rows:
        grid.add_row(_cell(name), _cell(value))
    return _indented(grid)


def _widths(block: Table) -> list[int]:
    return [max(map(len, column)) for column in zip(block.columns, *block.rows, strict=True)]


def _least_width(block: Table) -> int:
    return 1 + sum(2 + (width if width <= _WHOLE else _BROKEN) for width in _widths(block))


def _table(block: Table) -> RenderableType:
    table = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    for place, (name, width) in enumerate(zip(block.columns, _widths(block), strict=True)):
        justify: Literal["left", "right"] = "right" if place in block.right else "left"
        table.add_column(_cell(name), justify=justify, no_wrap=width <= _WHOLE, overflow="fold")
    for place, row in enumerate(block.rows):
        total = block.total and place == len(block.rows) - 1
        if total:
            table.add_section()
        table.add_row(*map(_cell, row), style="bold" if total else "")
    return _indented(table)


def _lines(block: Lines) -> RenderableType:
    text = Text("\n".join(map(printable, block.lines)), style=_TONES[block.tone])
    return _indented(text) if block.title else text


def _indented(body: RenderableType) -> RenderableType:
    return Padding(body, (0, 0, 0, 1), expand=False)


def _cell(text: str) -> Text:
    return Text(printable(text))
