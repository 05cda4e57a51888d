"""The parts of a layer, from the modules inside of a block."""

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.model.operators import Operator
from meshwright.model.spec import Part
from meshwright.trace.items import Item
from meshwright.trace.naming import word
from meshwright.trace.tree import Tree, prefixes
from meshwright.trace.write import split_roles

_PASSING = frozenset({"norm", "dropout", "activation", "add", "pool", "rotary", "loss", "parameter"})
"""Operators that make no part of their own."""
_HOLDERS = frozenset({"linear", "convolution", "attention", "experts", "router", "matmul", "embedding"})


class Written(NamedTuple):
    """An item with the operator that it became."""

    item: Item
    operator: Operator


def block_parts(block: str, found: Sequence[Written], tree: Tree) -> tuple[Part, ...]:
    """`attention`, `cross_attention`, `experts`, `mlp`, or the names of the modules; what stands between goes with the
    next one where it is a norm, and else with the one before.
    """
    labels = [_label(block, each.item, tree) for each in found]
    names = _part_names(block, found, labels)
    placed = _placed(found, [names.get(label, "") if label else "" for label in labels])
    kept: dict[str, list[Operator]] = {}
    for each, name in zip(found, placed, strict=True):
        kept.setdefault(name, []).append(each.operator)
    return tuple(Part(name=name, operators=tuple(split_roles(kept[name], tokens=False))) for name in kept)


def _label(block: str, item: Item, tree: Tree) -> str:
    """The module of the block that an item ran in, where it makes a part; lists are looked into."""
    if item.op == "parameter":
        return ""
    for path in prefixes(item.module):
        if len(path) > len(block) and not tree.is_uncalled(path):
            leaf = not tree.children[path]
            return "" if leaf and item.op in _PASSING else path
    return "" if item.op in _PASSING else block


def _part_names(block: str, found: Sequence[Written], labels: Sequence[str]) -> dict[str, str]:
    """Module → the name of its part."""
    inside: dict[str, list[Item]] = {}
    for each, label in zip(found, labels, strict=True):
        if label:
            inside.setdefault(label, []).append(each.item)
    attends = any(each.item.op == "attention" for each in found)
    crossing = {id(each.item) for each in found if getattr(each.operator, "cross", None)}
    names: dict[str, str] = {}
    for label, items in inside.items():
        names[label] = _part_name(label, items, crossing, attends)
    cores = [label for label, items in inside.items() if any(item.op == "attention" for item in items)]
    direct = any(label == block or _is_core_alone(inside[label]) for label in cores)
    return _around_bare_core(list(inside), inside, names) if direct else names


def _is_core_alone(items: Sequence[Item]) -> bool:
    return all(item.op in ("attention", "dropout", "rotary", "add") for item in items)


def _part_name(label: str, items: Sequence[Item], crossing: set[int], attends: bool) -> str:
    kinds = {item.op for item in items}
    if "attention" in kinds:
        cores = [item for item in items if item.op == "attention"]
        return "cross_attention" if all(id(item) in crossing for item in cores) else "attention"
    if "experts" in kinds:
        return "experts"
    return "mlp" if attends and kinds & _HOLDERS else word(label.rpartition(".")[2], "body")


def _around_bare_core(order: list[str], inside: dict[str, list[Item]], names: dict[str, str]) -> dict[str, str]:
    """Where matrices stand beside the core in the block: those before it and the first one after it are its own."""
    at = next(place for place, label in enumerate(order) if names[label] in ("attention", "cross_attention"))
    after = next((place for place in range(at + 1, len(order)) if names[order[place]] == "mlp"), at)
    return names | {
        label: names[order[at]]
        for place, label in enumerate(order)
        if place <= after and names[label] == "mlp" and len(inside[label]) <= 2
    }


def _placed(found: Sequence[Written], names: Sequence[str]) -> list[str]:
    """A part for every operator: those without one go with a neighbour."""
    placed = list(names)
    for place, each in enumerate(found):
        if placed[place]:
            continue
        following = next((name for name in names[place:] if name), "")
        before = placed[place - 1] if place else ""
        placed[place] = (following if each.item.op == "norm" else before) or before or following or "body"
    return placed
