"""From axes to lists of ranks: which ranks form each process group. Pure arithmetic, the single source for both
worlds.

A group's devices are reshaped row-major to its mesh. The process groups over some axes are the devices that differ in
those axes alone; inside each, the ranks stand in mesh order.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from meshwright.errors import PlanError
from meshwright.model.spans import format_spans
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


Reads = Mapping[str, Sequence[str]]
"""Layer → the layers whose output it takes."""


def process_groups(
    plan: Plan, ties: Sequence[tuple[str, Sequence[str]]] = (), reads: Reads | None = None
) -> tuple[GroupSet, ...]:
    """Every process group of more than one rank that a plan needs, equal ones once.

    `ties` names layers that share a parameter: (owner's layer, layers of the copies). Without `reads`, every layer
    takes what the layer before it in the plan puts out.
    """
    users: dict[tuple[Purpose, RankLists], list[str]] = {}
    for placed in plan.placed:
        for label, row in ((placed.layer, placed.row), *((placed.layer, row) for row in placed.parts.values())):
            for purpose, axes in purpose_axes(row).items():
                _note(users, purpose, axis_groups(plan.groups[placed.group], axes), label)
    for purpose, ranks, label in (*_pipeline(plan, reads or _one_by_one(plan)), *_tied(plan, ties)):
        _note(users, purpose, ranks, label)
    return tuple(
        GroupSet(purpose, tuple(format_spans(dict.fromkeys(labels))), ranks)
        for (purpose, ranks), labels in users.items()
    )


def _note(users: dict[tuple[Purpose, RankLists], list[str]], purpose: Purpose, ranks: RankLists, label: str) -> None:
    if ranks and len(ranks[0]) > 1:
        users.setdefault((purpose, ranks), []).append(label)


def _one_by_one(plan: Plan) -> Reads:
    names = [placed.layer for placed in plan.placed]
    return {after: (before,) for before, after in itertools.pairwise(names)}


def _pipeline(plan: Plan, reads: Reads) -> list[tuple[Purpose, RankLists, str]]:
    """Ranks that pass activations on: place by place where all groups cut them alike, else those whose shares meet.

    What crosses a cut is the live set, and each output of it goes straight from the group that made it to every group
    that reads it: no stage hands on what it does not use. A decoder over several stages takes the encoder's output on
    each of them from the encoder.
    """
    borders = list(_borders(plan, reads))
    if not borders:
        return []
    if all(cut_alike(sides) for _, sides in borders):
        groups = dict.fromkeys(stage.on for stage in plan.stages)
        taking = {id(group) for _, sides in borders for group, _ in sides}
        lists = tuple(
            zip(*(plan.groups[name].devices for name in groups if id(plan.groups[name]) in taking), strict=True)
        )
        return [("pipeline", lists, plan.placed[0].layer)]
    return [("pipeline", meeting_ranks(sides), label) for label, sides in borders]


def _borders(plan: Plan, reads: Reads) -> Iterator[tuple[str, "Sides"]]:
    """Where a stage reads one on another group: its first layer, and the two groups with the rows on either side."""
    where = {placed.layer: placed for placed in plan.placed}
    first = {number: stage.names()[0] for number, stage in enumerate(plan.stages) if stage.names()}
    seen: set[tuple[int, int, int, int]] = set()
    for placed in plan.placed:
        for source in (where[read] for read in reads.get(placed.layer, ()) if read in where):
            border = source.stage, placed.stage, id(source.row), id(placed.row)
            if source.group != placed.group and border not in seen:
                seen.add(border)
                sides = (plan.groups[source.group], source.row), (plan.groups[placed.group], placed.row)
                yield first[placed.stage], sides


Sides = Sequence[tuple[Group, Row]]
"""Groups that hold one thing, each with the row under which it does."""


def cut_alike(sides: Sides) -> bool:
    """Whether groups are of one size and divide their work in one way, so that place by place they hold the same."""
    return len({_cut(*side) for side in sides}) == 1


def _cut(group: Group, row: Row) -> tuple[int, tuple[tuple[int, str], ...]]:
    """How a row divides its work over its group: size, and each axis with what it splits."""
    sizes = ((axis, size) for axis, size in group.mesh.items() if size > 1 and axis in row.roles)
    return group.size, tuple((size, row.roles[axis].split) for axis, size in sizes)


_SHARES = (("dp",), ("cp",), ("ulysses",), ("tp", "tp+sp"))
"""What ranks divide between them: samples, positions, and pieces of the matrices with their positions."""


def meeting_ranks(sides: Sides) -> RankLists:
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
    if cut_alike(sides):
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
    return local_run(samples, group, row.axes("dp"), rank, "samples")


def local_run(count: int, group: Group, axes: Sequence[str], rank: int, what: str = "positions") -> tuple[int, int]:
    """(first, number) of `count` samples or positions that a rank holds where some axes divide them, in mesh order.

    Raises ValueError where they do not divide.
    """
    ways = math.prod(group.mesh[axis] for axis in axes)
    if count % ways:
        raise ValueError(f"{count} {what} do not divide over {ways} ranks")
    share = count // ways
    return position(group, rank, axes) * share, share
