"""From a tape to a ModelSpec: items to layers, layers to stacks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from meshwright.model.operators import Attention, Parameter
from meshwright.model.spec import LayerStack, ModelSpec, Part, Tie
from meshwright.trace import merge
from meshwright.trace.accounts import settle, tied_products
from meshwright.trace.calls import other_items
from meshwright.trace.example import Example
from meshwright.trace.items import Item
from meshwright.trace.layout import Layout, Place
from meshwright.trace.naming import BlockNames, name_groups, number_of, template, word
from meshwright.trace.parts import Written, block_parts
from meshwright.trace.products import product_items
from meshwright.trace.streams import Streams
from meshwright.trace.tape import Tape
from meshwright.trace.tree import Tree, prefixes
from meshwright.trace.write import Site, find_spot, split_roles, written


@dataclass(eq=False)
class _Layer:
    """One layer before equal ones are folded."""

    place: Place
    items: list[Item]
    stream: str = ""
    found: list[Written] = field(default_factory=list)
    reads: tuple[str, ...] = ()
    stack: LayerStack | None = None


def assemble(module: nn.Module, tape: Tape, example: Example, *, name: str, source: str) -> ModelSpec:
    """The ModelSpec of a module that was recorded."""
    tree = Tree(module)
    layout = Layout(tree, tape)
    layers = _layers(tree, layout, tape, example)
    streams = Streams(example.batch, example.lengths)
    streams.foresee(layer.items for layer in layers)
    for layer in layers:
        layer.stream = streams.of_layer(layer.items)
    _limit(streams, layers, module)
    _write(layers, streams, tree)
    _name(layers, layout, tree)
    for layer in layers:
        layer.stack = _stack(layer, layers, streams, tree, tape)
    used = [each for layer in layers for each in _streams_of(layer)]
    return ModelSpec(
        name=name,
        family=_family(module),
        source=source,
        streams=streams.records(used),
        stacks=tuple(_folded(layers)),
        shared=tuple(layout.shared),
        ties=_ties(tree),
    )


def _family(module: nn.Module) -> str:
    kind = getattr(getattr(module, "config", None), "model_type", None)
    return str(kind) if kind else type(module).__name__


# ---- items to layers


def _layers(tree: Tree, layout: Layout, tape: Tape, example: Example) -> list[_Layer]:
    layers = {place: _Layer(place, []) for place in layout.places}
    if not layers:
        return []
    first = next(iter(layers))
    for item in _items(tree, tape, example):
        ran = item.traits.get("core") or item
        place = layout.place(ran.steps[-1] if ran.steps else ran.serial - 1, ran.module)
        if place is None and (item.flops or item.weight or item.others):
            place = first
        if place is not None:
            layers[place].items.append(item)
    for layer in layers.values():
        layer.items = merge.joined_rotary(merge.folded_turns(layer.items, example.batch))
    return list(layers.values())


def _items(tree: Tree, tape: Tape, example: Example) -> list[Item]:
    products = product_items(tape, tree.names, example.batch)
    merge.late_biases(products, tape)
    products = merge.folded_experts(products, tape, tree.names)
    items = sorted([*products, *other_items(tape, tree.names)], key=lambda item: item.serial)
    return merge.attention_dropout(items, tape)


def _limit(streams: Streams, layers: Sequence[_Layer], module: nn.Module) -> None:
    """Positions that tables reach: as the configuration says, or the tables of positions."""
    config = getattr(module, "config", None)
    for name, length in streams.free.items():
        items = [item for layer in layers if layer.stream == name for item in layer.items]
        rows = merge.position_limit(items, length, streams.batch)
        if rows is not None:
            said = getattr(config, "max_position_embeddings", None)
            streams.limits[name] = said if isinstance(said, int) and length <= said <= rows else rows


# ---- layers to operators


def _write(layers: Sequence[_Layer], streams: Streams, tree: Tree) -> None:
    by_place = {layer.place: layer for layer in layers}
    for layer in layers:
        for item in layer.items:
            item.traits["spot"] = find_spot(item, streams, layer.stream)
            item.traits["times"] = item.traits["spot"].times
    labels = {str(place): layer for place, layer in enumerate(layers)}
    homes = _homes(labels, tree)
    left = settle({label: layer.items for label, layer in labels.items()}, homes, tree.names)
    for label, layer in labels.items():
        tied_products(layer.items)
        near = tuple(by_place[read].stream for read in layer.place.reads if read in by_place)
        site = Site(streams, layer.stream, near, tree.names)
        layer.found = [Written(item, written(item, site)) for item in layer.items]
        for name in left.get(label, ()):
            operator = Parameter(path=name, shape=tree.names.shapes[name])
            item = Item("parameter", {}, 0, 0, name.rpartition(".")[0])
            layer.found.insert(_before(layer.found, item.module), Written(item, operator))


def _homes(labels: dict[str, _Layer], tree: Tree) -> dict[str, str]:
    """The layer that holds each parameter: the one that covers its module, or itself."""
    covers = {path: label for label, layer in labels.items() for path in layer.place.modules}
    return {
        name: next(covers[path] for path in (*reversed(prefixes(name)), "") if path in covers)
        for name in tree.names.shapes
    }


def _before(found: Sequence[Written], module: str) -> int:
    """Where a parameter of a module is written: before the first operator of the module."""
    return next((place for place, each in enumerate(found) if each.item.module == module and module), len(found))


# ---- names


def _name(layers: Sequence[_Layer], layout: Layout, tree: Tree) -> None:
    causal: dict[str, bool | None] = {}
    for layer in layers:
        cores = [each.operator for each in layer.found if isinstance(each.operator, Attention)]
        if layer.place.container:
            causal[layer.place.block] = any(core.causal for core in cores) if cores else None
    names = BlockNames(layout.containers, tree, causal)
    for layer in layers:
        container = layer.place.container
        if container is not None:
            number = number_of(layer.place.block)
            place = number if number is not None else container.blocks.index(layer.place.block)
            alone = len(container.blocks) == 1 and number is None
            layer.place.name = names.names[container] if alone else f"{names.names[container]}.{place}"
    name_groups([layer.place for layer in layers], tree, bool(layout.containers))
    for layer in layers:
        layer.reads = tuple(dict.fromkeys(read.name for read in _earlier(layer, layers)))


def _earlier(layer: _Layer, layers: Sequence[_Layer]) -> Iterator[Place]:
    """What a layer reads of those before it, nearest first; a model that runs a layer again reads what comes later."""
    before = [each.place for each in layers[: layers.index(layer)]]
    return (place for place in reversed(before) if place in layer.place.reads)


# ---- layers to stacks


def _stack(layer: _Layer, layers: Sequence[_Layer], streams: Streams, tree: Tree, tape: Tape) -> LayerStack:
    place = layer.place
    if place.container:
        parts = block_parts(place.block, layer.found, tree)
    else:
        parts = (_single_part(layer, tokens=layer.stream in streams.free),)
    parts = tuple(_with_templates(part, place.block) for part in parts)
    return LayerStack(
        span=place.name,
        modules=tuple(template(path, place.block) for path in place.modules),
        reads=layer.reads,
        stream=layer.stream,
        output=_output(layer, layers, streams, tape),
        parts=parts,
    )


def _single_part(layer: _Layer, *, tokens: bool) -> Part:
    base = layer.place.name.partition(".")[0]
    name = "embedding" if base.endswith("embed") else base.rpartition("_")[2] if base.endswith(("_norm",)) else base
    operators = [each.operator for each in layer.found]
    tokens = tokens and (base.endswith("embed") or base == "head")
    return Part(name=word(name, "body"), operators=tuple(split_roles(operators, tokens=tokens)))


def _with_templates(part: Part, block: str) -> Part:
    if not block:
        return part
    written_anew = tuple(
        operator.model_copy(update={"path": template(operator.path, block)}) for operator in part.operators
    )
    return part.model_copy(update={"operators": written_anew})


def _output(layer: _Layer, layers: Sequence[_Layer], streams: Streams, tape: Tape) -> int:
    """Numbers that it hands on for each position of its stream: of the largest tensor that another layer reads, or that
    the model returns.
    """
    place, positions = layer.place, streams.batch * streams.named(layer.stream)
    handed = [value for other in layers for value in other.place.reads.get(place, ())]
    made = {item.output for item in layer.items}
    handed = handed or [value for value in tape.outputs if value.learns and layer is layers[-1]]
    handed = handed or [value for value in made if value is not None]
    largest = max((value.numel for value in handed), default=1)
    width = largest / (positions if largest >= positions else streams.batch)
    return max(1, round(width))


def _folded(layers: Sequence[_Layer]) -> Iterator[LayerStack]:
    """Runs of equal layers as one stack each."""
    run: list[_Layer] = []
    for layer in layers:
        if run and _goes_on(run, layer):
            run.append(layer)
            continue
        if run:
            yield _run_stack(run)
        run = [layer]
    if run:
        yield _run_stack(run)


def _goes_on(run: list[_Layer], layer: _Layer) -> bool:
    last, stack = run[-1], layer.stack
    base, _, number = layer.place.name.partition(".")
    before, _, last_number = last.place.name.partition(".")
    if stack is None or last.stack is None or not number or base != before or int(number) != int(last_number or -1) + 1:
        return False
    same = stack.model_copy(update={"span": last.stack.span, "reads": last.stack.reads}) == last.stack
    folds = all("{i}" in path for path in stack.modules)
    return same and folds and last.place.name in layer.reads and _side(run[-1], layer) == _run_side(run, layer)


def _side(last: _Layer, layer: _Layer) -> frozenset[str]:
    return frozenset(layer.reads) - {last.place.name}


def _run_side(run: list[_Layer], layer: _Layer) -> frozenset[str]:
    """What all of a run read besides the one before: as its second layer does, where the first reads it too."""
    if len(run) > 1:
        return _side(run[0], run[1])
    side = _side(run[0], layer)
    return side if side <= frozenset(run[0].reads) else frozenset({""})


def _run_stack(run: list[_Layer]) -> LayerStack:
    first, stack = run[0], run[0].stack
    assert stack is not None
    if len(run) == 1:
        return stack
    side = _side(run[0], run[1])
    base, _, number = first.place.name.partition(".")
    last = run[-1].place.name.partition(".")[2]
    ordered = tuple(name for name in first.reads if name in side)
    reads = tuple(name for name in first.reads if name not in side)
    return stack.model_copy(update={"span": f"{base}.{number}-{last}", "reads": reads, "side": ordered})


# ---- the rest


def _streams_of(layer: _Layer) -> Iterator[str]:
    yield layer.stream
    for each in layer.found:
        for key in ("stream", "cross"):
            name = getattr(each.operator, key, None)
            if name is not None:
                yield name


def _ties(tree: Tree) -> tuple[Tie, ...]:
    """Parameters of several names. One is the embedding, where it is a table."""
    found: list[Tie] = []
    for name, aliases in tree.names.aliases.items():
        if len(aliases) > 1:
            holders = [tree.modules[alias.rpartition(".")[0]] for alias in aliases]
            table = any(isinstance(each, nn.Embedding) for each in holders)
            taken = {tie.name for tie in found}
            said = "embedding" if table and "embedding" not in taken else name.replace(".", "_")
            found.append(Tie(name=said, owner=name, copies=tuple(each for each in aliases if each != name)))
    return tuple(found)
