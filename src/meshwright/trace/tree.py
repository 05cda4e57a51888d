"""The modules of a model, and where its repeated blocks are."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from meshwright.trace.items import Names
from meshwright.trace.tape import Shape, Tape, Value

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_UNCALLED = (nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Container:
    """Blocks that follow each other, each reading the one before."""

    path: str
    blocks: tuple[str, ...]
    outer: "tuple[str, int] | None" = None
    """The path of the list of unlike stages that it is a piece of, and which of them."""


class Tree:
    """Modules by path."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = dict(module.named_modules())
        self.children = {
            path: [f"{path}.{name}" if path else name for name, _ in child.named_children()]
            for path, child in self.modules.items()
        }
        self.children = {
            path: [child for child in below if child in self.modules] for path, below in self.children.items()
        }
        self.names = parameter_names(module)
        self.held = {path: any(True for _ in child.parameters()) for path, child in self.modules.items()}

    def kind(self, path: str) -> str:
        """The class of a module."""
        return type(self.modules[path]).__name__

    def is_list(self, path: str) -> bool:
        """Whether a module does nothing but hold others."""
        return isinstance(self.modules[path], _LISTS)

    def is_uncalled(self, path: str) -> bool:
        """Whether a module has no forward of its own."""
        return isinstance(self.modules[path], _UNCALLED)

    def signature(self, path: str) -> tuple[object, ...]:
        """Equal for modules of one class with parameters of equal names and shapes."""
        own = ((name, tuple(parameter.shape)) for name, parameter in self.modules[path].named_parameters())
        return (self.kind(path), *own)


def parameter_names(module: nn.Module) -> Names:
    """Shapes of all parameters by their first name, and each one's names."""
    shapes: dict[str, Shape] = {}
    first: dict[int, str] = {}
    aliases: dict[str, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        shapes.setdefault(known, tuple(parameter.shape))
        aliases.setdefault(known, []).append(name)
    return Names(shapes, {name: tuple(each) for name, each in aliases.items()})


def find_containers(tree: Tree, tape: Tape) -> list[Container]:
    """The outermost lists of like blocks of which each reads the one before; of a list of unlike stages that hold such
    lists themselves, the inner ones.
    """
    ran = {step.module for step in tape.steps}
    ran = {prefix for path in ran for prefix in prefixes(path)}
    return list(_below("", tree, tape, ran))


def _below(path: str, tree: Tree, tape: Tape, ran: set[str], *, may_hold_stages: bool = True) -> Iterator[Container]:
    blocks = _blocks(path, tree, ran, in_stage=not may_hold_stages)
    if blocks and _is_chain(blocks, tape):
        yield from _stages(path, blocks, tree, tape, ran) if may_hold_stages else [Container(path, blocks)]
        return
    for child in tree.children[path]:
        yield from _below(child, tree, tape, ran, may_hold_stages=may_hold_stages)


def _stages(path: str, blocks: tuple[str, ...], tree: Tree, tape: Tape, ran: set[str]) -> Iterator[Container]:
    """Blocks that are all unlike, and hold such lists themselves, are stages: their own blocks count."""
    inner = {block: list(_below(block, tree, tape, ran, may_hold_stages=False)) for block in blocks}
    unlike = len({tree.signature(block) for block in blocks}) == len(blocks) > 1
    if not unlike or sum(map(bool, inner.values())) * 2 < len(blocks):
        yield Container(path, blocks)
        return
    for place, block in enumerate(blocks):
        if not inner[block]:
            yield Container(path, (block,))
        yield from (Container(each.path, each.blocks, (path, place)) for each in inner[block])


def _blocks(path: str, tree: Tree, ran: set[str], *, in_stage: bool) -> tuple[str, ...]:
    """The modules of a list that may be blocks: those with modules and parameters inside, some of one class; one alone
    where its list is no mere wrapper.
    """
    if not tree.is_list(path):
        return ()
    blocks = [child for child in tree.children[path] if child in ran and tree.held[child] and tree.children[child]]
    kinds = {tree.kind(block) for block in blocks}
    alone = len(blocks) == 1 and len(tree.children[path]) == 1 and (in_stage or tree.is_uncalled(path))
    return tuple(blocks) if alone or len(kinds) < len(blocks) else ()


def _is_chain(blocks: tuple[str, ...], tape: Tape) -> bool:
    """Whether each block, in the order in which they run, reads what the one before made."""
    place = {path: number for number, path in enumerate(blocks)}
    made: dict[Value, frozenset[int]] = {}
    order: dict[int, None] = {}
    reached: set[tuple[int, int]] = set()
    cache: dict[str, int | None] = {}
    for step in tape.steps:
        if step.module not in cache:
            cache[step.module] = next((place[each] for each in prefixes(step.module) if each in place), None)
        own = cache[step.module]
        marks: frozenset[int] = frozenset().union(*(made.get(origin(value), frozenset()) for value in step.values))
        if own is not None:
            order.setdefault(own)
            reached.update((mark, own) for mark in marks if mark != own)
            marks = frozenset({own})
        for value in step.outputs:
            if marks and value.learns:
                made[value] = marks
    ran = list(order)
    return all(pair in reached for pair in itertools.pairwise(ran))


def origin(value: Value) -> Value:
    """The value that a step made, of one that was merged with it."""
    return value.step.outputs[0] if value.step is not None and value not in value.step.outputs else value


def prefixes(path: str) -> list[str]:
    """A module's path and those of all around it, outermost first, without the root.

    >>> prefixes("model.layers.0")
    ['model', 'model.layers', 'model.layers.0']
    """
    words = path.split(".") if path else []
    return [".".join(words[: end + 1]) for end in range(len(words))]
