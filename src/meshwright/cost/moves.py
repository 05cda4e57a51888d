"""Activations that change hands: between layers under unlike rows, and between stages.

A rank holds a run of samples and a run of positions. Each held number's gradient is the true one on every rank that
holds it, so the way back of a move is the opposite move.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.flows import Flow
from meshwright.plan.divisions import Division, Mesh, division, missing, steps
from meshwright.plan.spec import Group, Row


def moves(mesh: Mesh, source: Division, target: Division, size: float) -> list[Flow]:
    """The collectives that bring activations of `size` bytes in all from one division to another, one way: those of
    `plan.divisions.steps`. 64 bytes over four:

    >>> whole, samples, positions = Division((), ()), Division(("x",), ()), Division((), ("x",))
    >>> moves({"x": 4}, whole, samples, 64)
    []
    >>> [(flow.kind, flow.bytes) for flow in moves({"x": 4}, samples, whole, 64)]
    [('all_gather', 64.0)]
    >>> [(flow.kind, flow.bytes) for flow in moves({"x": 4}, samples, positions, 64)]
    [('all_to_all', 16.0)]
    """
    found = []
    for way, axes, before, after in steps(mesh, source, target):
        if way == "exchange":
            found.append(Flow("transition", way, axes, size * missing(mesh, before, after), "forward"))
        elif way != "slice":
            found.append(Flow("transition", way, axes, size / after.ways(mesh), "forward"))
    return found


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
