"""From axes to lists of ranks: which ranks form each process group. Pure arithmetic, the single source for both
worlds.

A group's devices are reshaped row-major to its mesh. The process groups over some axes are the devices that differ in
those axes alone; inside each, the ranks stand in mesh order.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from meshwright.errors import PlanError
from meshwright.model.spans import format_spans, span_names
from meshwright.plan.ranks import format_ranks, parse_ranks
from meshwright.plan.spec import Group, Placed, Plan, Row

Purpose = Literal[
    "tensor", "context", "sequence", "expert", "batch", "shard", "replica", "gradient", "pipeline", "tied"
]
RankLists = tuple[tuple[int, ...], ...]


class GroupSet(NamedTuple):
    """The process groups of one purpose, with the spans of layers that use them."""

    purpose: Purpose
    used_by: tuple[str, ...]
    ranks: RankLists


def axis_groups(group: Group, axes: Iterable[str]) -> RankLists:
    """The process groups over some axes of a group's mesh; one list for each setting of the other axes.

    Raises PlanError where the mesh has not a place for each device.

    >>> axis_groups(Group(devices="0-7", mesh={"dp": 2, "pp": 2, "tp": 2}), ["dp", "tp"])
    ((0, 1, 4, 5), (2, 3, 6, 7))
    """
    if group.mesh_size != group.size:
        raise PlanError(f"the mesh {group.mesh} has {group.mesh_size:,} places for {group.size:,} devices")
    inside = set(axes)
    steps, stride = [], group.mesh_size
    for axis, size in group.mesh.items():
        stride //= size
        steps.append((axis, [index * stride for index in range(size)]))
    within = [sum(offsets) for offsets in itertools.product(*(shifts for axis, shifts in steps if axis in inside))]
    starts = [sum(offsets) for offsets in itertools.product(*(shifts for axis, shifts in steps if axis not in inside))]
    devices = group.devices
    return tuple(tuple(devices[start + offset] for offset in within) for start in starts)


def coordinates(group: Group, rank: int) -> dict[str, int]:
    """Where a rank stands on each axis of its group. Raises ValueError where it is no member."""
    place, stride, found = group.devices.index(rank), group.mesh_size, {}
    for axis, size in group.mesh.items():
        stride //= size
        found[axis] = place // stride % size
    return found


def position(group: Group, rank: int, axes: Sequence[str]) -> int:
    """A rank's place along several axes taken together, in mesh order."""
    where, place = coordinates(group, rank), 0
    for axis, size in group.mesh.items():
        if axis in axes:
            place = place * size + where[axis]
    return place


def mesh_order(group: Group, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes in the order of the mesh."""
    wanted = set(axes)
    return tuple(axis for axis in group.mesh if axis in wanted)


def purpose_axes(row: Row) -> dict[Purpose, tuple[str, ...]]:
    """Which axes each kind of process group of a row spans. An empty tuple: none is needed.

    Gradients add up where ranks have other samples or positions; on a `copy` axis they are already equal.
    """
    state = row.state_axes()
    summed = row.axes("dp", "cp", "ulysses")
    return {
        "tensor": row.axes("tp", "tp+sp"),
        "context": row.axes("cp"),
        "sequence": row.axes("ulysses"),
        "expert": row.axes("ep"),
        "batch": row.axes("dp"),
        "shard": state,
        "replica": tuple(axis for axis in summed if axis not in state),
        "gradient": summed,
    }


def process_groups(plan: Plan, ties: Sequence[tuple[str, Sequence[str]]] = ()) -> tuple[GroupSet, ...]:
    """Every process group of more than one rank that a plan needs, equal ones once.

    `ties` names layers that share a parameter: (owner's layer, layers of the copies).
    """
    users: dict[tuple[Purpose, RankLists], list[str]] = {}
    for placed in plan.placed:
        for label, row in ((placed.layer, placed.row), *((placed.layer, row) for row in placed.parts.values())):
            for purpose, axes in purpose_axes(row).items():
                _note(users, purpose, axis_groups(plan.groups[placed.group], axes), label)
    for purpose, ranks, label in (*_pipeline(plan), *_tied(plan, ties)):
        _note(users, purpose, ranks, label)
    return tuple(
        GroupSet(purpose, tuple(format_spans(dict.fromkeys(labels))), ranks)
        for (purpose, ranks), labels in users.items()
    )


def _note(users: dict[tuple[Purpose, RankLists], list[str]], purpose: Purpose, ranks: RankLists, label: str) -> None:
    if ranks and len(ranks[0]) > 1:
        users.setdefault((purpose, ranks), []).append(label)


def _pipeline(plan: Plan) -> list[tuple[Purpose, RankLists, str]]:
    """Ranks that pass activations on: place by place where all stages cut them alike, else those whose shares meet."""
    order = list(dict.fromkeys(stage.on for stage in plan.stages))
    rows = [[row for row in stage.layers if row.part is None] for stage in plan.stages]
    if len(order) < 2 or not all(rows):
        return []
    borders = [
        ((plan.groups[a.on], left[-1]), (plan.groups[b.on], right[0]))
        for (a, left), (b, right) in itertools.pairwise(zip(plan.stages, rows, strict=True))
        if a.on != b.on
    ]
    if all(_cut(*left) == _cut(*right) for left, right in borders):
        lists = tuple(zip(*(plan.groups[name].devices for name in order), strict=True))
        return [("pipeline", lists, plan.stages[0].names()[0])]
    return [("pipeline", meeting_ranks(border), span_names(border[1][1].span)[0]) for border in borders]


def _cut(group: Group, row: Row) -> tuple[int, tuple[tuple[int, str], ...]]:
    """How a row divides its work over its group: size, and each axis with what it splits."""
    sizes = ((axis, size) for axis, size in group.mesh.items() if size > 1 and axis in row.roles)
    return group.size, tuple((size, row.roles[axis].split) for axis, size in sizes)


_SHARES = (("dp",), ("cp",), ("ulysses",), ("tp", "tp+sp"))
"""What ranks divide between them: samples, positions, and pieces of the matrices with their positions."""


def meeting_ranks(sides: Sequence[tuple[Group, Row]]) -> RankLists:
    """The smallest sets of ranks of unlike groups that together hold the same shares of the work.

    dp 2 before dp 4 gives two sets, dp 4 before dp 3 one; tp 4 before tp 8 sets of one rank and two.
    """
    meshes = [[axis_groups(group, row.axes(*splits)) for splits in _SHARES] for group, row in sides]
    common = [math.gcd(*(len(kind[0]) for kind in kinds)) for kinds in zip(*meshes, strict=True)]
    sets: dict[tuple[int, ...], list[int]] = {}
    for (group, _), kinds in zip(sides, meshes, strict=True):
        place: dict[int, tuple[int, ...]] = dict.fromkeys(group.devices, ())
        for lists, ways in zip(kinds, common, strict=True):
            for ranks in lists:
                for index, rank in enumerate(ranks):
                    place[rank] += (index * ways // len(ranks),)
        for rank, key in place.items():
            sets.setdefault(key, []).append(rank)
    return tuple(tuple(ranks) for _, ranks in sorted(sets.items()))


def _tied(plan: Plan, ties: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[Purpose, RankLists, str]]:
    """For each tie, the ranks whose copies of one slice are summed."""
    where = {placed.layer: placed for placed in plan.placed}
    found: list[tuple[Purpose, RankLists, str]] = []
    for owner, copies in ties:
        members = [where[name] for name in (owner, *copies) if name in where]
        if len({placed.group for placed in members}) > 1:
            found.append(("tied", tied_ranks(plan, members), owner))
    return found


def tied_ranks(plan: Plan, members: Sequence[Placed]) -> RankLists:
    """Place by place where all holders are cut alike, else the ranks whose slices meet."""
    holders = {placed.group: placed.row for placed in members}
    sides = [(plan.groups[name], row) for name, row in holders.items()]
    if len({_cut(*side) for side in sides}) == 1:
        return tuple(zip(*(group.devices for group, _ in sides), strict=True))
    return meeting_ranks(sides)


def show_groups(ranks: RankLists) -> dict[str, str | int]:
    """Rank lists in short, losing nothing: the first, and where each of the others starts, if all are shifts of it."""
    first = ranks[0]
    starts = [group[0] for group in ranks]
    if all(tuple(rank - group[0] for rank in group) == tuple(rank - first[0] for rank in first) for group in ranks):
        return {"size": len(first), "count": len(ranks), "first": format_ranks(first), "starts": format_ranks(starts)}
    return {"size": len(first), "count": len(ranks), "all": "; ".join(format_ranks(group) for group in ranks)}


def read_groups(shown: dict[str, str | int]) -> RankLists:
    """The inverse of `show_groups`."""
    if "all" in shown:
        return tuple(parse_ranks(text) for text in str(shown["all"]).split(";"))
    first = parse_ranks(str(shown["first"]))
    return tuple(tuple(rank - first[0] + start for rank in first) for start in parse_ranks(str(shown["starts"])))


def local_batch(samples: int, group: Group, row: Row, rank: int) -> tuple[int, int]:
    """(first sample, number of samples) of a micro-batch that a rank holds under a row: its share over the dp axes.

    Raises ValueError where they do not divide.
    """
    axes = row.axes("dp")
    ways = math.prod(group.mesh[axis] for axis in axes)
    if samples % ways:
        raise ValueError(f"{samples} samples do not divide over {ways} ranks")
    share = samples // ways
    return position(group, rank, axes) * share, share
