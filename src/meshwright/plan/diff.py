"""What differs between two plans, in a plan's own terms.

Names of groups and axes, the notation of devices, and how layers are spread over rows mean nothing and make no change.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshwright.model.spans import format_spans
from meshwright.plan.numbers import show_mesh
from meshwright.plan.ranks import format_ranks
from meshwright.plan.spec import Execution, Group, Offload, Placed, Plan, Recompute, Repeat, Row, Save

_ABSENT = "absent"
_AS_ITS_LAYER = "as its layer"


@dataclass(frozen=True)
class Change:
    """One thing that differs: where, and what it is in the one plan and in the other."""

    where: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.where}: {self.before} → {self.after}"


def diff_plans(a: Plan, b: Plan) -> list[Change]:
    """What differs between two plans; empty where they mean the same. Layers that change alike stand together."""
    known = _same_groups(a, b)
    pairs = (*_references(a, b), *_settings(a, b), *_groups(a, b, known), *_layers(a, b, known))
    return [Change(where, before, after) for where, before, after in pairs if before != after]


Pairs = Iterator[tuple[str, str, str]]


def _references(a: Plan, b: Plan) -> Pairs:
    for what in ("model", "cluster"):
        yield what, getattr(a, what).name, getattr(b, what).name
    for what in ("model", "cluster", "recipe"):
        recorded = [getattr(plan, what).fingerprint for plan in (a, b)]
        if all(recorded):
            yield f"{what}.fingerprint", recorded[0], recorded[1]
    yield "recipe.global_batch", str(a.recipe.global_batch), str(b.recipe.global_batch)
    yield "recipe.sequence", _lengths(a.recipe.sequence), _lengths(b.recipe.sequence)


def _lengths(sequence: int | dict[str, int]) -> str:
    """Equal lengths of all streams are one length."""
    if isinstance(sequence, int) or len(set(sequence.values())) == 1:
        return str(sequence if isinstance(sequence, int) else next(iter(sequence.values())))
    return show_mesh(dict(sorted(sequence.items())))


def _settings(a: Plan, b: Plan) -> Pairs:
    yield "micro_batches", str(a.micro_batches), str(b.micro_batches)
    yield "schedule", a.schedule, b.schedule
    for name in Execution.model_fields:
        yield f"execution.{name}", str(getattr(a.execution, name)), str(getattr(b.execution, name))


def _same_groups(a: Plan, b: Plan) -> dict[str, str]:
    """The name in `a` of each group of `b`: the group with the same devices, or else the one of the same name."""
    by_devices = {group.devices: name for name, group in a.groups.items()}
    known = {name: by_devices[group.devices] for name, group in b.groups.items() if group.devices in by_devices}
    taken = set(known.values())
    for name in b.groups:
        if name not in known and name in a.groups and name not in taken:
            known[name] = name
    return known


def _groups(a: Plan, b: Plan, known: Mapping[str, str]) -> Pairs:
    other = {name: b.groups[mine] for mine, name in known.items()}
    for name, group in a.groups.items():
        if name not in other:
            yield f"groups.{name}", _shown(group), _ABSENT
            continue
        yield f"groups.{name}.devices", format_ranks(group.devices), format_ranks(other[name].devices)
        if _sizes(group) != _sizes(other[name]):
            yield f"groups.{name}.mesh", show_mesh(group.mesh), show_mesh(other[name].mesh)
    for name, group in b.groups.items():
        if name not in known:
            yield f"groups.{name}", _ABSENT, _shown(group)


def _shown(group: Group) -> str:
    return f"devices {format_ranks(group.devices)}, mesh {show_mesh(group.mesh)}"


def _sizes(group: Group) -> list[int]:
    return [size for size in group.mesh.values() if size > 1]


class _Names:
    """What the groups and axes of a plan are called in the other one."""

    def __init__(self, plan: Plan, other: Plan, known: Mapping[str, str]) -> None:
        self.plan, self.known = plan, known
        self.axes = {name: _axes(group, other.groups.get(known.get(name, ""))) for name, group in plan.groups.items()}

    def stage(self, placed: Placed) -> str:
        """The stage of a layer, with its group."""
        return f"stage {placed.stage} on {self.known.get(placed.group, placed.group)}"

    def roles(self, row: Row, group: str) -> str:
        """Roles in mesh order, without axes of one device."""
        mesh, axes = self.plan.groups[group].mesh, self.axes[group]
        ordered = [
            *(axis for axis in mesh if axis in row.roles),
            *sorted(axis for axis in row.roles if axis not in mesh),
        ]
        return show_mesh({axes.get(axis, axis): row.roles[axis] for axis in ordered if mesh.get(axis) != 1})

    def aspects(self, placed: Placed) -> dict[str, str]:
        """All that a plan says of a layer."""
        whole = self._row(placed.row, placed.group)
        found = {"stage": self.stage(placed)} | whole
        for part, row in placed.parts.items():
            own = self._row(row, placed.group)
            if own != whole:
                found |= {f"{part} {aspect}": value for aspect, value in own.items()}
        return found

    def _row(self, row: Row, group: str) -> dict[str, str]:
        return {
            "roles": self.roles(row, group),
            "recompute": _recompute(row.recompute),
            "offload": _offload(row.offload),
        }


def _axes(group: Group, other: Group | None) -> dict[str, str]:
    """The names of axes in the other group, where the two meshes have the same sizes."""
    if other is None or _sizes(group) != _sizes(other):
        return {}
    mine, theirs = ([axis for axis, size in each.mesh.items() if size > 1] for each in (group, other))
    return dict(zip(mine, theirs, strict=True))


def _recompute(recompute: Recompute) -> str:
    if isinstance(recompute, Repeat):
        return ", ".join(sorted(set(recompute.repeat)))
    return f"all but {', '.join(sorted(set(recompute.save)))}" if isinstance(recompute, Save) else recompute


def _offload(offload: Offload) -> str:
    return ", ".join(name for name in Offload.model_fields if getattr(offload, name)) or "none"


def _layers(a: Plan, b: Plan, known: Mapping[str, str]) -> Pairs:
    mine = _Names(a, a, {name: name for name in a.groups})
    theirs = _Names(b, a, known)
    before = {placed.layer: mine.aspects(placed) for placed in a.placed}
    after = {placed.layer: theirs.aspects(placed) for placed in b.placed}
    alike: dict[tuple[str, str, str], list[str]] = {}
    for layer in dict.fromkeys((*before, *after)):
        for change in _layer(before.get(layer), after.get(layer)):
            alike.setdefault(change, []).append(layer)
    for (aspect, one, other), layers in alike.items():
        yield f"{', '.join(format_spans(layers))}{aspect}", one, other


def _layer(before: dict[str, str] | None, after: dict[str, str] | None) -> Pairs:
    if before is None or after is None:
        yield "", "present" if before else _ABSENT, "present" if after else _ABSENT
        return
    for aspect in dict.fromkeys((*before, *after)):
        one, other = before.get(aspect, _AS_ITS_LAYER), after.get(aspect, _AS_ITS_LAYER)
        if one != other:
            yield f" {aspect}", one, other
