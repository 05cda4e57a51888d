"""What each row of a plan works on: the stacks of the model that its span meets, and the parts that are its own.

Spans are met with stacks by their first and last index, so that the work is one of rows and stacks, not of layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshwright.model.operators import Attention, Operator
from meshwright.model.spans import parse_span
from meshwright.model.spec import LayerStack, ModelSpec, Part
from meshwright.plan.spec import Group, Plan, Row, Stage


@dataclass(frozen=True, eq=False)
class Held:
    """Layers of one stack, with the parts of them that a row takes; one object for all rows that hold the same."""

    stack: LayerStack
    parts: tuple[Part, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """What is computed in each of the layers."""
        return tuple(operator for part in self.parts for operator in part.operators)

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention cores."""
        return tuple(operator for operator in self.operators if isinstance(operator, Attention))


class _Place(NamedTuple):
    stage: int
    place: int
    on: str
    group: Group
    row: Row
    names: tuple[str, ...]
    held: tuple[Held, ...]


class Site(_Place):
    """A row where it stands: stage, place in it, name of the group, group, row, the names of its layers, and what
    it holds of them. Layers that the model does not have are left out.
    """

    @cached_property
    def where(self) -> str:
        """The row's field in the plan, with its span."""
        part = f" {self.row.part}" if self.row.part else ""
        return f"stages.{self.stage}.layers.{self.place} ({self.row.span}{part})"

    def ways(self, *splits: str) -> int:
        """How many ways the row splits by these: the product of the axes' sizes; an unknown axis counts as one."""
        ways = 1
        for axis, role in self.row.roles.items():
            if role.split in splits:
                ways *= self.group.mesh.get(axis, 1)
        return ways


def find_sites(plan: Plan, model: ModelSpec) -> tuple[Site, ...]:
    """Every row of a plan with what it holds, in the order of the stages."""
    known: dict[tuple[str, tuple[str, ...]], Held] = {}
    sites = []
    for number, stage in enumerate(plan.stages):
        for place, row in enumerate(stage.layers):
            names, held = [], []
            for stack, layers, parts in _met(stage, row, model):
                names += layers
                key = stack.span, tuple(part.name for part in parts)
                held.append(known.setdefault(key, Held(stack, parts)))
            sites.append(Site(number, place, stage.on, plan.groups[stage.on], row, tuple(names), tuple(held)))
    return tuple(sites)


def _met(stage: Stage, row: Row, model: ModelSpec) -> Iterator[tuple[LayerStack, list[str], tuple[Part, ...]]]:
    """The stacks that a row meets, with the names of its layers and the parts that it takes of them."""
    for stack in model.stacks:
        common = shared_indices(row.span, stack.span)
        if not common:
            continue
        base, numbers = parse_span(stack.span)
        names = [base] if numbers is None else [f"{base}.{index}" for index in common]
        if row.part is None:
            parts = tuple(part for part in stack.parts if not _apart(stage, part.name, row, stack))
        else:
            parts = tuple(part for part in stack.parts if part.name == row.part)
        yield stack, names, parts


def _apart(stage: Stage, part: str, row: Row, stack: LayerStack) -> bool:
    """Whether rows for this part take it from every one of the layers of a stack that a row names."""
    others = [other.span for other in stage.layers if other.part == part]
    taken = {index for other in others for index in shared_indices(other, stack.span)}
    return bool(others) and taken.issuperset(shared_indices(row.span, stack.span))


def shared_indices(one: str, other: str) -> range:
    """The indices of the layers that two spans have in common; a layer without index counts as index 0."""
    (base, numbers), (other_base, other_numbers) = parse_span(one), parse_span(other)
    if base != other_base or (numbers is None) != (other_numbers is None):
        return range(0)
    if numbers is None or other_numbers is None:
        return range(1)
    return range(max(numbers.start, other_numbers.start), min(numbers.stop, other_numbers.stop))
