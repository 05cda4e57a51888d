"""How a row divides activations among ranks, and the steps from one division to another. Pure arithmetic, for both
worlds.

Samples are divided into equal runs over some axes in mesh order, positions over others, so that a rank holds a run of
samples and a run of positions.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from meshwright.plan.spec import Row

Mesh = Mapping[str, int]
Run = tuple[int, int]
"""(first, number)."""
POSITION_SPLITS = ("cp", "ulysses", "tp+sp")
"""Splits under which each rank holds a run of the positions between the layers."""


class Division(NamedTuple):
    """The axes over which activations are divided by samples, and those by positions, in mesh order."""

    batch: tuple[str, ...]
    positions: tuple[str, ...]

    def ways(self, mesh: Mesh) -> int:
        """Into how many pieces."""
        return math.prod(mesh[axis] for axis in self.batch + self.positions)


def division(row: Row, mesh: Mesh) -> Division:
    """How a row divides the activations between its layers. `tp` and `copy` ranks hold them whole; `ep` ranks have
    samples of their own, as `dp` ranks do.
    """
    batch, positions = row.axes("dp", "ep"), row.axes(*POSITION_SPLITS)
    return Division(*(tuple(axis for axis in mesh if axis in axes and mesh[axis] > 1) for axes in (batch, positions)))


def by_tokens(source: Row, target: Row, mesh: Mesh) -> tuple[Division, Division]:
    """Both where it does not matter which positions a rank has (routed experts): all pieces are alike, so that what
    both divide over comes first, and a rank takes its share of what it holds.

    >>> dense, routed = (Row(span="a", roles={"x": role, "y": "dp"}) for role in ("tp", "ep"))
    >>> by_tokens(dense, routed, {"x": 2, "y": 2})
    (Division(batch=(), positions=('y',)), Division(batch=(), positions=('y', 'x')))
    """
    one, other = ({axis for axes in division(row, mesh) for axis in axes} for row in (source, target))
    common = [axis for axis in mesh if axis in one & other]
    held, wanted = ((*common, *(axis for axis in mesh if axis in axes - set(common))) for axes in (one, other))
    return Division((), held), Division((), wanted)


Way = Literal["slice", "all_gather", "all_to_all", "exchange"]


class Step(NamedTuple):
    """One collective of a move, over the ranks that differ in `axes` alone; a slice is none."""

    way: Way
    axes: tuple[str, ...]
    source: Division
    target: Division


def steps(mesh: Mesh, source: Division, target: Division) -> Iterator[Step]:
    """The cheapest way from one division to another.

    Ranks that need no more than they hold take a slice; whole runs are gathered; what changes from samples to positions
    is turned all to all; what lies elsewhere is exchanged, just that.

    >>> whole, samples, positions = Division((), ()), Division(("x",), ()), Division((), ("x",))
    >>> def ways(source: Division, target: Division) -> list[str]:
    ...     return [step.way for step in steps({"x": 4}, source, target)]
    >>> ways(whole, samples), ways(samples, whole), ways(samples, positions), ways(positions, positions)
    (['slice'], ['all_gather'], ['all_to_all'], [])
    """
    turned = tuple(
        axis
        for axis in mesh
        if (axis in source.batch and axis in target.positions) or (axis in source.positions and axis in target.batch)
    )
    if turned:
        after = Division(*(tuple(a for a in mesh if (a in axes) != (a in turned)) for axes in source))
        if not (_nests(source, after, turned) or _nests(after, source, turned)):
            yield Step("exchange", _unlike(mesh, source, target), source, target)
            return
        yield Step("all_to_all", turned, source, after)
        source = after
    for after in (Division(target.batch, source.positions), target):
        if after != source:
            yield _regrouped(mesh, source, after)
        source = after


def _nests(source: Division, after: Division, turned: tuple[str, ...]) -> bool:
    """Whether all that turns leaves the samples, is innermost there, and becomes the innermost of the positions."""
    return source.batch[-len(turned) :] == turned == after.positions[-len(turned) :]


def _regrouped(mesh: Mesh, source: Division, target: Division) -> Step:
    """Where samples alone are divided differently, or positions alone."""
    axes = _unlike(mesh, source, target)
    if not any(_rest(source, target)):
        return Step("slice", axes, source, target)
    return Step("exchange" if any(_rest(target, source)) else "all_gather", axes, source, target)


def _rest(one: Division, other: Division) -> list[tuple[str, ...]]:
    """Axes that both begin with hold the same; only the rest takes part."""
    rest = []
    for mine, others in zip(one, other, strict=True):
        common = 0
        while common < min(len(mine), len(others)) and mine[common] == others[common]:
            common += 1
        rest.append(mine[common:])
    return rest


def _unlike(mesh: Mesh, source: Division, target: Division) -> tuple[str, ...]:
    unlike = {
        axis for one, other in ((source, target), (target, source)) for rest in _rest(one, other) for axis in rest
    }
    return tuple(axis for axis in mesh if axis in unlike)


def missing(mesh: Mesh, source: Division, target: Division) -> float:
    """The share of all that the worst-off rank lacks of what it is to hold.

    Four ranks hold a half each by the first of two axes, and want a half by the second: two have nothing of theirs.

    >>> missing({"x": 2, "y": 2}, Division(("x",), ()), Division(("y",), ()))
    0.5
    """
    worst, axes = 0, _unlike(mesh, source, target)
    unit = math.prod(mesh[axis] for axis in {*source.batch, *source.positions, *target.batch, *target.positions})
    for coordinates in itertools.product(*(range(mesh[axis]) for axis in axes)):
        place = dict(zip(axes, coordinates, strict=True))
        held, wanted = (_bounds(mesh, place, each, unit) for each in (source, target))
        common = (max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(held, wanted, strict=True))
        worst = max(worst, math.prod(end - start for start, end in wanted) - math.prod(common))
    return worst / unit**2


def _bounds(mesh: Mesh, place: Mapping[str, int], division: Division, unit: int) -> list[tuple[int, int]]:
    """Where a rank's run of samples begins and ends, and its run of positions, of `unit` each. On axes that `place`
    does not name it is the first.
    """
    found = []
    for axes in division:
        index, ways = 0, 1
        for axis in axes:
            index, ways = index * mesh[axis] + place.get(axis, 0), ways * mesh[axis]
        found.append((index * unit // ways, (index + 1) * unit // ways))
    return found
