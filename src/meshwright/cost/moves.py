"""Activations that change hands: between layers under unlike rows, and between stages.

A rank holds a run of samples and a run of positions. Each held number's gradient is the true one on every rank that
holds it, so the way back of a move is the opposite move.
"""

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.flows import Flow, Kind, active
from meshwright.cost.ways import batch_axes
from meshwright.plan.spec import Group, Row

Mesh = Mapping[str, int]


class Division(NamedTuple):
    """The axes over which activations are divided by samples, and those by positions, in mesh order."""

    batch: tuple[str, ...]
    positions: tuple[str, ...]

    def ways(self, mesh: Mesh) -> int:
        """Into how many pieces."""
        return math.prod(mesh[axis] for axis in self.batch + self.positions)


def division(row: Row, mesh: Mesh) -> Division:
    """How a row divides the activations between its layers. `tp` and `copy` ranks hold them whole."""
    return Division(active(batch_axes(row), mesh), active(row.axes("cp", "ulysses", "tp+sp"), mesh))


def by_tokens(row: Row, mesh: Mesh) -> Division:
    """The same where it does not matter which positions a rank has (routed experts): all pieces are alike."""
    batch, positions = division(row, mesh)
    return Division((), active(batch + positions, mesh))


def moves(mesh: Mesh, source: Division, target: Division, size: float) -> list[Flow]:
    """The collectives that bring activations of `size` bytes in all from one division to another, one way.

    Ranks that need no more than they hold take a slice, which moves nothing; whole runs are gathered; what changes from
    samples to positions is exchanged all to all; samples that lie elsewhere are exchanged just so. 64 bytes over four:

    >>> whole, samples, positions = Division((), ()), Division(("x",), ()), Division((), ("x",))
    >>> moves({"x": 4}, whole, samples, 64)
    []
    >>> [(flow.kind, flow.bytes) for flow in moves({"x": 4}, samples, whole, 64)]
    [('all_gather', 64.0)]
    >>> [(flow.kind, flow.bytes) for flow in moves({"x": 4}, samples, positions, 64)]
    [('all_to_all', 16.0)]
    """
    turned = tuple(
        axis
        for axis in mesh
        if (axis in source.batch and axis in target.positions) or (axis in source.positions and axis in target.batch)
    )
    flows = []
    if turned:
        flows.append(Flow("transition", "all_to_all", turned, size / source.ways(mesh), "forward"))
        source = Division(_turn(mesh, source.batch, turned), _turn(mesh, source.positions, turned))
    flows += _by_samples(mesh, source, target.batch, size)
    return flows + _by_positions(mesh, Division(target.batch, source.positions), target, size)


def _turn(mesh: Mesh, axes: tuple[str, ...], turned: tuple[str, ...]) -> tuple[str, ...]:
    """The axes after the turned ones have changed sides."""
    return tuple(axis for axis in mesh if (axis in axes) != (axis in turned))


def _by_positions(mesh: Mesh, source: Division, target: Division, size: float) -> list[Flow]:
    lost = tuple(axis for axis in source.positions if axis not in target.positions)
    gained = tuple(axis for axis in target.positions if axis not in source.positions)
    if not lost:
        return []
    kind: Kind = "all_to_all" if gained else "all_gather"
    return [Flow("transition", kind, active(lost + gained, mesh), size / target.ways(mesh), "forward")]


def _by_samples(mesh: Mesh, source: Division, wanted: tuple[str, ...], size: float) -> list[Flow]:
    """Axes that both begin with hold the same samples; only the rest takes part."""
    held, common = source.batch, 0
    while common < min(len(held), len(wanted)) and held[common] == wanted[common]:
        common += 1
    losing, gaining = held[common:], wanted[common:]
    if not losing:
        return []
    outside = math.prod(mesh[axis] for axis in (*held[:common], *source.positions))
    if not gaining:
        return [Flow("transition", "all_gather", losing, size / outside, "forward")]
    axes = active(losing + gaining, mesh)
    return [Flow("transition", "exchange", axes, size / outside * _missing(mesh, axes, losing, gaining), "forward")]


def _missing(mesh: Mesh, axes: tuple[str, ...], held: tuple[str, ...], wanted: tuple[str, ...]) -> float:
    """The share of the samples that the worst-off rank must receive.

    Four ranks hold a half each by the first of two axes, and want a half by the second: two have nothing of theirs.

    >>> _missing({"x": 2, "y": 2}, ("x", "y"), ("x",), ("y",))
    0.5
    """

    def start(place: Mapping[str, int], over: tuple[str, ...]) -> float:
        index = 0
        for axis in over:
            index = index * mesh[axis] + place[axis]
        return index / math.prod(mesh[axis] for axis in over)

    have, want = (1 / math.prod(mesh[axis] for axis in over) for over in (held, wanted))
    worst = 0.0
    for coordinates in itertools.product(*(range(mesh[axis]) for axis in axes)):
        place = dict(zip(axes, coordinates, strict=True))
        first, last = (
            max(start(place, held), start(place, wanted)),
            min(start(place, held) + have, start(place, wanted) + want),
        )
        worst = max(worst, want - max(0.0, last - first))
    return worst


class Crossing(NamedTuple):
    """What two groups pass to each other for one micro-batch: bytes of the busiest rank, each way."""

    forward: float
    backward: float


def crossing(source: tuple[Group, Row], target: tuple[Group, Row], size: float) -> Crossing:
    """Activations of `size` bytes in all, from one group to another; every rank receives what its row wants there.

    Where groups are unlike, ranks that hold the same share the sending. From two ranks to four that hold everything
    each, a sender has two messages of all of it; back, each of the two takes what it holds from one or two:

    >>> two, four = Group(devices="0-1", mesh={"x": 2}), Group(devices="2-5", mesh={"x": 4})
    >>> halves, all_of_it = Row(span="a", roles={"x": "dp"}), Row(span="b", roles={"x": "tp"})
    >>> crossing((two, halves), (four, all_of_it), 64)
    Crossing(forward=128.0, backward=32.0)
    """
    a, b = source[0], target[0]
    held, wanted = (size / division(row, group.mesh).ways(group.mesh) for group, row in (source, target))
    return Crossing(max(wanted, wanted * b.size / a.size), max(held, held * a.size / b.size))


def pairs(a: Group, b: Group) -> NDArray[np.int64]:
    """A sending and a receiving device for each device of the larger of two groups.

    >>> pairs(Group(devices="0-1", mesh={"dp": 2}), Group(devices="2-5", mesh={"dp": 4})).tolist()
    [[0, 2], [0, 3], [1, 4], [1, 5]]
    """
    here, there = np.array(a.devices), np.array(b.devices)
    places = np.arange(max(a.size, b.size))
    return np.stack([side[places * len(side) // len(places)] for side in (here, there)], axis=1)
