"""What cost computes once: blocks of equal layers, and the edges between layers that are not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.cost.shares import Learning
from meshwright.model.spans import format_spans
from meshwright.model.spec import LayerStack, Part
from meshwright.plan.spec import Placed, Row


@dataclass(frozen=True, eq=False)
class Block:
    """Equal layers of one stage: of one stack, under one row, with equal rows of parts, and learning alike."""

    stage: int
    group: str
    stack: LayerStack
    row: Row
    parts: Mapping[str, Row]
    """Rows of parts that have their own."""
    learning: Learning
    names: tuple[str, ...]
    joined: tuple[str, ...] = ()
    """Layers on the same group that share a parameter with it, and whose parameters are sharded together with its."""
    lends: bool = False
    """True where its parameters are sharded with a later layer's."""
    last: bool = False
    """True for the last layer of the last stage, whose backward follows at once."""

    likeness: int = 0
    """Equal for blocks that compute and move the same, on whatever devices of equal kinds."""

    @property
    def span(self) -> str:
        """Its layers in short."""
        return ", ".join(format_spans(self.names))

    def rows(self) -> Iterator[tuple[Row, tuple[Part, ...]]]:
        """The row of the layers as a whole with the parts under it, then each part's own row with its part."""
        yield self.row, tuple(part for part in self.stack.parts if part.name not in self.parts)
        yield from ((self.parts[part.name], (part,)) for part in self.stack.parts if part.name in self.parts)


class Edge(NamedTuple):
    """A layer reads another that stands elsewhere, or under another row."""

    source: Placed
    target: Placed
    width: int
    stream: str
    learns: bool
    """True where a gradient goes back."""
