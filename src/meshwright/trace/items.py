"""What a step or a call amounts to: an operator, before it is known which layer it belongs to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.trace.tape import Shape, Value


@dataclass(slots=True, eq=False)
class Item:
    """An operator in the making."""

    op: str
    """The operator's name in a ModelSpec."""
    fields: dict[str, Any]
    rows: int
    """Positions that it works on, of all samples together."""
    serial: int
    """When: the number of steps before its end."""
    module: str
    """The module that ran."""
    output: Value | None = None
    weight: str | None = None
    """The parameter that is its matrix or table."""
    portion: int = 0
    """Numbers of that parameter that it uses."""
    others: tuple[str, ...] = ()
    """Further parameters that it counts (biases, gains)."""
    context: int = 0
    """Positions that an attention core looks at."""
    input_rows: int = 0
    """Positions that a convolution reads, of all samples together."""
    flops: int = 0
    learns: int = 2
    """Operands of a product that want a gradient."""
    steps: tuple[int, ...] = ()
    """Serials of the steps that it covers."""
    traits: dict[str, Any] = field(default_factory=dict)
    """What later passes want to know."""


class Names:
    """The parameters of a model: their shapes, and all the names of one that has several."""

    def __init__(self, shapes: Mapping[str, Shape], aliases: Mapping[str, tuple[str, ...]]) -> None:
        self.shapes = shapes
        self.aliases = aliases

    def numel(self, name: str) -> int:
        """Numbers of a parameter."""
        count = 1
        for size in self.shapes[name]:
            count *= size
        return count

    def near(self, name: str, module: str) -> str:
        """Of a parameter's names the one that is nearest to a module's path."""
        return max(self.aliases.get(name, (name,)), key=lambda each: _common(each, module))

    def of(self, module: str) -> list[str]:
        """A module's own parameters."""
        return [name for name in self.shapes if name.rpartition(".")[0] == module]

    def made_of(self, value: Value, numel: int) -> str | None:
        """The parameter that a weight is or was made of: the one with as many numbers, where it is not one's view."""
        if value.parameter is not None:
            return value.parameter
        fitting = [name for name in sorted(value.weights) if self.numel(name) == numel]
        return fitting[0] if fitting else None


def _common(name: str, module: str) -> int:
    count = 0
    for one, other in zip(name.split("."), module.split("."), strict=False):
        if one != other:
            break
        count += 1
    return count


def spread(value: Value, channels: bool) -> tuple[int, int]:
    """(rows, width) of a tensor: its last dimension is the width, or its second, of images and sounds (`channels`)."""
    shape = value.shape
    if not shape:
        return 1, 1
    width = shape[1] if channels and len(shape) > 2 else shape[-1]
    return value.numel // max(1, width), max(1, width)


def union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    """All of some sets."""
    return frozenset().union(*sets)
