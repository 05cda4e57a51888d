"""Rules about groups of devices: who is in them, how they are laid out, and who is left out."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from meshwright.plan.numbers import show_mesh, show_ranks
from meshwright.plan.rule import Finding, Inputs, Rule, found

_GAPS = 8
"""Runs of idle devices that are named."""


def _twice_in_a_group(inputs: Inputs) -> Iterator[Finding]:
    for name, group in inputs.plan.groups.items():
        if len(set(group.devices)) < group.size:
            [(device, times)] = Counter(group.devices).most_common(1)
            once = show_ranks(tuple(dict.fromkeys(group.devices)))
            yield found(f"groups.{name}.devices", device=device, times=times, once=once)


def _mesh_of_another_size(inputs: Inputs) -> Iterator[Finding]:
    for name, group in inputs.plan.groups.items():
        if group.mesh_size != group.size:
            yield found(
                f"groups.{name}.mesh",
                mesh=show_mesh(group.mesh),
                places=group.mesh_size,
                count=group.size,
                nearest=show_mesh(_nearest_mesh(group.mesh, group.size)),
            )


def _nearest_mesh(mesh: dict[str, int], count: int) -> dict[str, int]:
    """The inner axes keep their sizes where these divide the count; the outermost takes the rest."""
    sizes, left = {}, count
    for axis in list(reversed(mesh))[:-1]:
        sizes[axis] = math.gcd(mesh[axis], left)
        left //= sizes[axis]
    outermost = next(iter(mesh), "dp")
    return {outermost: left} | dict(reversed(sizes.items()))


def _outside_of_the_cluster(inputs: Inputs) -> Iterator[Finding]:
    last = inputs.cluster.size - 1
    for name, group in inputs.plan.groups.items():
        if max(group.devices) > last:
            outside = [device for device in group.devices if device > last]
            cluster = inputs.cluster.name
            yield found(f"groups.{name}.devices", devices=show_ranks(outside), cluster=cluster, known=_first_to(last))


def _first_to(last: int) -> str:
    return f"0-{last}" if last else "0"


def _in_two_groups(inputs: Inputs) -> Iterator[Finding]:
    sizes = [len(set(group.devices)) for group in inputs.plan.groups.values()]
    if len(set().union(*(group.devices for group in inputs.plan.groups.values()))) == sum(sizes):
        return
    owner: dict[int, str] = {}
    for name, group in inputs.plan.groups.items():
        shared: dict[str, list[int]] = {}
        for device in dict.fromkeys(group.devices):
            if owner.setdefault(device, name) != name:
                shared.setdefault(owner[device], []).append(device)
        for other, devices in shared.items():
            yield found(f"groups.{name}.devices", devices=show_ranks(devices), other=other)


def _without_a_stage(inputs: Inputs) -> Iterator[Finding]:
    used = {stage.on for stage in inputs.plan.stages}
    for name in inputs.plan.groups:
        if name not in used:
            yield found(f"groups.{name}", group=name)


def _without_work(inputs: Inputs) -> Iterator[Finding]:
    size = inputs.cluster.size
    idle = set(range(size)).difference(*(group.devices for group in inputs.plan.groups.values()))
    if idle:
        busy = sorted(set(range(size)) - idle)
        gaps = [(one + 1, next_one - 1) for one, next_one in pairwise([-1, *busy, size]) if one + 1 < next_one]
        shown = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in gaps[:_GAPS])
        yield found("groups", count=len(idle), size=size, devices=shown + ("..." if len(gaps) > _GAPS else ""))


GROUP_RULES: tuple[Rule, ...] = (
    Rule(
        "devices-are-distinct",
        "meaning",
        _twice_in_a_group,
        "device {device} stands {times} times",
        "write every device once: {once}",
    ),
    Rule(
        "mesh-holds-the-devices",
        "meaning",
        _mesh_of_another_size,
        "a mesh {mesh} holds {places}, and the number of devices is {count}",
        "write {nearest}",
    ),
    Rule(
        "devices-are-in-the-cluster",
        "meaning",
        _outside_of_the_cluster,
        "cluster '{cluster}' has devices {known}, and not {devices}",
        "use devices out of {known}",
    ),
    Rule(
        "groups-are-disjoint",
        "meaning",
        _in_two_groups,
        "group '{other}' has devices {devices} too",
        "take them out of one of the two groups",
    ),
    Rule(
        "group-has-a-stage",
        "meaning",
        _without_a_stage,
        "no stage is on group '{group}'",
        "put a stage on it, or remove it",
    ),
    Rule(
        "devices-have-work",
        "meaning",
        _without_work,
        "no group has {devices}: {count} of the cluster's {size} devices",
        "add them to a group, or plan for a cluster without them",
        "warning",
    ),
)
