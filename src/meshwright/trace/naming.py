"""Names of layers: DESIGN's words where they fit, else the modules' own."""

import re
from collections.abc import Sequence

from meshwright.trace.layout import Place
from meshwright.trace.tape import words
from meshwright.trace.tree import Container, Tree

_BAD = re.compile(r"[^a-z0-9_]+")
_NUMBER = re.compile(r"(?:^|[._a-zA-Z])(\d{1,4})$")
_PLAIN = words(
    "layer layers block blocks h encoder decoder transformer layers_list resblocks stages stage group groups"
)
"""Names of containers that say nothing of what they hold."""


def word(text: str, default: str) -> str:
    """A name as documents have them: lower-case letters, digits and _, with a letter first."""
    plain = _BAD.sub("_", text.lower()).strip("_")
    return plain if plain and plain[0].isalpha() else default


def number_of(block: str) -> int | None:
    """The number that a block's path ends with."""
    match = _NUMBER.search(block)
    return int(match.group(1)) if match else None


def template(path: str, block: str) -> str:
    """A path inside of a block with {i} for its number: 'h.3.attn' → 'h.{i}.attn'."""
    number = number_of(block)
    if number is None or not (path == block or path.startswith(f"{block}.")):
        return path
    return block[: -len(str(number))] + "{i}" + path[len(block) :] if block.endswith(str(number)) else path


class BlockNames:
    """What the blocks of each container are called."""

    def __init__(self, containers: Sequence[Container], tree: Tree, attends: dict[str, bool | None]) -> None:
        """`attends`: by block, whether its attention is causal; none where it has no attention."""
        self.containers, self.tree, self.attends = containers, tree, attends
        self.hugging = getattr(getattr(tree.modules[""], "config", None), "model_type", None) is not None
        self.names: dict[Container, str] = {}
        for container in containers:
            self.names[container] = _unique(self._name(container), set(self.names.values()))

    def _name(self, container: Container) -> str:
        words = [each for each in container.path.split(".") if each and not each.isdigit()]
        own = word(words[-1], "layers") if words else "layers"
        if container.outer is not None:
            outer = word(container.outer[0].rpartition(".")[2], "stage")
            base = "stage" if outer in _PLAIN else f"{outer}_"
            alone = sum(each.outer == container.outer for each in self.containers) == 1
            return f"{base}{container.outer[1] + (base == 'stage')}" + ("" if alone else f"_{own}")
        return self._by_role(container, words, own)

    def _by_role(self, container: Container, words: list[str], own: str) -> str:
        attention = {self.attends.get(block) for block in container.blocks} - {None}
        kind = type(self.tree.modules[""]).__name__
        if not self.hugging or own not in _PLAIN:
            return own
        if not attention:
            return "decoder" if kind.endswith(("CausalLM", "LMHeadModel")) else own
        path = container.path.lower()
        if ("vision" in path or "visual" in path) and len(self.containers) > 1:
            return "vision"
        for role in ("decoder", "encoder"):
            if any(role in each for each in words):
                return role
        return "decoder" if True in attention else "encoder"


def name_groups(places: Sequence[Place], tree: Tree, has_blocks: bool) -> None:
    """Name the layers that are no blocks: `embed` for what reads nothing, `head` for what comes last, a norm by what it
    follows; else by their modules. Raises nothing; names are made unique.
    """
    taken = {place.name.partition(".")[0] for place in places if place.container}
    groups = [place for place in places if not place.container]
    roots = [place for place in groups if not place.reads]
    main = _main_roots(places, roots) if has_blocks else {}
    lists: dict[str, str] = {}
    for place in groups:
        base, dot, number = (main.get(place) or _group_name(place, places, tree, has_blocks)).partition(".")
        outer = place.modules[0].rpartition(".")[0] if dot and place.modules else ""
        if not dot or outer not in lists:
            base = _unique(base, taken)
            taken.add(base)
        base = lists.setdefault(outer, base) if dot else base
        place.name = f"{base}{dot}{number}"


def _unique(name: str, taken: set[str]) -> str:
    """A name that is not taken: 'merge', then 'merge_2'."""
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _main_roots(places: Sequence[Place], roots: Sequence[Place]) -> dict[Place, str]:
    """For each container the root that feeds its first block with most: its `embed`."""
    fed: dict[str, Place] = {}
    for place in places:
        base = place.name.partition(".")[0]
        if place.container and base not in fed:
            feeding = [root for root in roots if root in place.reads and root not in fed.values()]
            if feeding:
                fed[base] = max(feeding, key=lambda root: max(value.numel for value in place.reads[root]))
    alone = len(fed) == 1
    return {place: "embed" if alone else f"{base}_embed" for base, place in fed.items()}


def _group_name(place: Place, places: Sequence[Place], tree: Tree, has_blocks: bool) -> str:
    if has_blocks and place is places[-1] and place.reads:
        return "head"
    held = [path for path in place.modules if path in tree.modules and tree.held[path]] or place.modules
    blocks = [read for read in place.reads if read.container]
    if has_blocks and len(held) == 1 and len(blocks) == 1 and "norm" in tree_kind(tree, held[0]).lower():
        return f"{blocks[0].name.partition('.')[0]}_norm"
    last = held[0].rpartition(".") if held else ("", "", "model")
    if last[2].isdigit():
        outer = word(last[0].rpartition(".")[2], "layer")
        return f"{outer}.{last[2]}" if len(last[2]) < 5 else outer
    return word(last[2], "layer")


def tree_kind(tree: Tree, path: str) -> str:
    """The class of a module; empty for a parameter."""
    return tree.kind(path) if path in tree.modules else ""
