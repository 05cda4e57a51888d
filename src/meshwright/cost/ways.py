"""How many ways the axes of a row split what its layers do."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # describing a model starts without the documents of plans
    from meshwright.plan.spec import Row


class Ways(NamedTuple):
    """How many ways a row splits what its layers do: products of the sizes of its axes."""

    batch: int = 1
    cp: int = 1
    ulysses: int = 1
    tensor: int = 1
    """`tp` and `tp+sp` together."""
    scattered: int = 1
    """`tp+sp` alone: positions are split over these outside of the cut matrices."""
    experts: int = 1


def split_ways(row: "Row", mesh: Mapping[str, int]) -> Ways:
    """The ways of a row on a mesh. `ep` ranks each bring their own samples, as `dp` ranks do.

    >>> from meshwright.plan.spec import Row
    >>> row = Row(span="decoder.0", roles={"a": "dp", "b": "ep", "c": "tp+sp"})
    >>> split_ways(row, {"a": 2, "b": 4, "c": 8})
    Ways(batch=8, cp=1, ulysses=1, tensor=8, scattered=8, experts=4)
    """

    def product(*splits: str) -> int:
        return math.prod(mesh.get(axis, 1) for axis in row.axes(*splits))

    return Ways(
        batch=math.prod(mesh.get(axis, 1) for axis in batch_axes(row)),
        cp=product("cp"),
        ulysses=product("ulysses"),
        tensor=product("tp", "tp+sp"),
        scattered=product("tp+sp"),
        experts=product("ep"),
    )


def batch_axes(row: "Row") -> tuple[str, ...]:
    """The axes over which a row's samples are divided: `dp`, and `ep`, whose ranks exchange positions themselves."""
    return row.axes("dp", "ep")
