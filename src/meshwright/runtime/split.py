"""Putting a layer's tensor parallelism onto its modules: which parameters are cut how, and what each forward then
does.

Where transformers' own plan names a module, its word is taken; where it has none, that of the model's description.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from torch import nn

from meshwright.errors import PlanError
from meshwright.model.cuts import between_cuts
from meshwright.model.operators import Attention, Dropout, Embedding, Linear, Loss, Norm
from meshwright.model.spec import Layer, Part
from meshwright.runtime.local_sizes import localise
from meshwright.runtime.shard import Cut
from meshwright.runtime.tensor import (
    Entrance,
    TensorRanks,
    cut_vocabulary,
    enter_split_block,
    is_linear,
    is_transposed,
    row_forward,
)

Direction = Literal["column", "row"]
_STYLES: dict[str, Direction] = {
    "colwise": "column",
    "packed_colwise": "column",
    "colwise_gather_output": "column",
    "rowwise": "row",
    "rowwise_split_input": "row",
}
"""Words of transformers' plans for linear modules, of which some gather because a module's code reads whole sizes:
here it reads its own (`local_sizes`).
"""


class SplitParameter(NamedTuple):
    """A parameter to be cut: the module that owns it, its attribute, and the cut."""

    module: nn.Module
    attribute: str
    path: str
    cut: Cut


def split_layer(root: nn.Module, layer: Layer, ranks: TensorRanks) -> list[SplitParameter]:
    """Prepare a layer's modules for slices over `ranks`, and name the parameters to cut. The caller cuts them. Raises
    PlanError for modules that it cannot cut.
    """
    return [found for part in layer.stack.parts for found in _split_part(root, layer, part, ranks)]


def dropped_between(layer: Layer) -> set[str]:
    """The dropout modules that work on a rank's own channels, between matrices that are cut."""
    inside = (op for part in layer.stack.parts for op in between_cuts(part.operators))
    return {layer.module_path(op.path) for op in inside if isinstance(op, Dropout) and op.of == "hidden" and op.path}


def norms_of_heads(layer: Layer) -> Iterator[str]:
    """The paths of norms that work on the heads of a rank alone: each tensor rank has a part of their gradient."""
    for part in layer.stack.parts:
        for op in between_cuts(part.operators):
            if isinstance(op, Norm):
                yield layer.module_path(op.path)


def dropout_calls(layer: Layer) -> set[str]:
    """The modules whose dropout is drawn call by call: those that a layer runs more than once. A function's, which has
    no module, is "".
    """
    drops = [op for op in layer.stack.operators if isinstance(op, Dropout) and op.of == "hidden"]
    paths = Counter(layer.module_path(op.path) if op.path else "" for op in drops)
    return {path for path, times in paths.items() if times > 1 or not path}


def drops_attention(layer: Layer) -> bool:
    """Whether a layer drops weights of its attention."""
    drops = (op for op in layer.stack.operators if isinstance(op, Dropout))
    return any(op.of == "attention" and op.probability for op in drops)


def cuts_vocabulary(layer: Layer) -> bool:
    """Whether a layer's logits are cut under tensor parallelism."""
    classes = {op.classes for op in layer.stack.operators if isinstance(op, Loss)}
    return any(isinstance(op, Linear) and op.split and op.outputs in classes for op in layer.stack.operators)


def _split_part(root: nn.Module, layer: Layer, part: Part, ranks: TensorRanks) -> Iterable[SplitParameter]:
    for table in part.operators:
        if isinstance(table, Embedding) and table.split:
            path = layer.module_path(table.path)
            for same in _holders(root, layer, _embedding(root, path)):
                cut_vocabulary(same, ranks, -(-table.rows // ranks.all.size))
            yield SplitParameter(root.get_submodule(path), "weight", path, Cut(0, ranks.all, padded=table.rows))
    plan: Mapping[str, str] = getattr(root, "tp_plan", None) or {}
    named = [(op, layer.module_path(op.path)) for op in part.operators if isinstance(op, Linear)]
    linears = [(op, path, way) for op, path in named if (way := _direction(op, path, plan))]
    if not linears:
        return
    core = next((op for op in part.operators if isinstance(op, Attention)), None)
    _enter(root, linears, ranks)
    if core is not None:
        block = root.get_submodule(common_module([path for _, path, _ in linears]))
        for inner in block.modules():
            localise(inner, core, ranks.all.size)
        yield from _split_biases(root, [layer.module_path(table) for table in _tables_of_heads(part)], ranks)
    classes = next((op.classes for op in layer.stack.operators if isinstance(op, Loss)), None)
    for linear, path, way in linears:
        module = _linear(root, path)
        if way == "column":
            yield from _split_columns(module, path, _column_cut(linear, core, ranks, classes))
        else:
            yield from _split_rows(module, path, ranks)


def _tables_of_heads(part: Part) -> list[str]:
    """The tables that have a bias for each head (T5's relative positions)."""
    return [op.path for op in between_cuts(part.operators) if isinstance(op, Embedding)]


def _split_biases(root: nn.Module, paths: list[str], ranks: TensorRanks) -> Iterable[SplitParameter]:
    for path in paths:
        table = _embedding(root, path)
        table.embedding_dim //= ranks.all.size
        yield SplitParameter(table, "weight", path, Cut(1, ranks.all))


def _direction(linear: Linear, path: str, plan: Mapping[str, str]) -> Direction | None:
    """How a matrix is cut. Raises PlanError where transformers' plan says otherwise than the model's description."""
    style = next((style for pattern, style in plan.items() if fnmatchcase(path, pattern)), None)
    planned = _STYLES.get(str(style))
    if planned is not None and linear.split is not None and planned != linear.split:
        raise PlanError(
            f"transformers' plan cuts '{path}' {style}, and the model's description by {linear.split}; describe the "
            "model anew (meshwright.trace)"
        )
    return planned or linear.split


def _enter(root: nn.Module, linears: list[tuple[Linear, str, Direction]], ranks: TensorRanks) -> None:
    """Where what a part reads enters. With runs of positions that are gathered it is the part's module, whose code
    asks for their number; else the first matrices, whatever else their module does with what it reads.
    """
    if ranks.scattered:
        enter_split_block(root.get_submodule(common_module([path for _, path, _ in linears])), ranks)
        return
    columns = [(linear.stream, _linear(root, path)) for linear, path, way in linears if way == "column"]
    for stream in dict.fromkeys(stream for stream, _ in columns):  # keys and values may look at another stream
        readers = [module for read, module in columns if read == stream]
        entrance = Entrance(ranks, len(readers))
        for module in readers:
            module.register_forward_pre_hook(entrance, prepend=True)


def _column_cut(linear: Linear, core: Attention | None, ranks: TensorRanks, classes: int | None) -> Cut:
    """KV heads that are fewer than ranks are copied, a vocabulary is filled up."""
    ways = ranks.all.size
    if core is not None and linear.outputs == core.kv_heads * core.head_dim and core.kv_heads < ways:
        return Cut(0, ranks.all, copies=ways // core.kv_heads)
    padded = linear.outputs if linear.outputs == classes else None
    return Cut(0, ranks.all, linear.segments, padded=padded)


def _split_columns(module: nn.Module, path: str, cut: Cut) -> Iterable[SplitParameter]:
    transposed = is_transposed(module)
    yield SplitParameter(module, "weight", path, replace(cut, dim=1 if transposed else 0))
    if module.bias is not None:
        yield SplitParameter(module, "bias", path, cut)
    _resize(module, "nf" if transposed else "out_features", cut.slices)


def _split_rows(module: nn.Module, path: str, ranks: TensorRanks) -> Iterable[SplitParameter]:
    transposed = is_transposed(module)
    vars(module)["forward"] = row_forward(module, ranks)
    yield SplitParameter(module, "weight", path, Cut(0 if transposed else 1, ranks.all))
    _resize(module, "nx" if transposed else "in_features", ranks.all.size)


def _resize(module: nn.Module, attribute: str, ways: int) -> None:
    setattr(module, attribute, -(-getattr(module, attribute) // ways))


def _linear(root: nn.Module, path: str) -> nn.Module:
    module = root.get_submodule(path)
    if not is_linear(module):
        raise PlanError(
            f"tp cuts nn.Linear and transformers' Conv1D, and '{path}' is {type(module).__name__}; write 'dp' for its "
            "layer, or build the model of those"
        )
    return module


def _embedding(root: nn.Module, path: str) -> nn.Embedding:
    module = root.get_submodule(path)
    if not isinstance(module, nn.Embedding):
        raise PlanError(f"tp cuts nn.Embedding, and '{path}' is {type(module).__name__}; write 'dp' for its layer")
    return module


def _holders(root: nn.Module, layer: Layer, table: nn.Embedding) -> list[nn.Embedding]:
    """The modules of a layer that have a table's parameter: one may name it, and another look it up (T5)."""
    modules = {id(module): module for module in map(root.get_submodule, layer.modules)}
    same = [each for each in modules.values() if isinstance(each, nn.Embedding) and each.weight is table.weight]
    return same or [table]


def common_module(paths: list[str]) -> str:
    """The path of the deepest module that holds all of these: ['a.b.c', 'a.b.d'] → 'a.b'; of one path, itself."""
    steps = [path.split(".") for path in paths]
    depth = 0
    while all(len(step) > depth and step[depth] == steps[0][depth] for step in steps):
        depth += 1
    return ".".join(steps[0][:depth])
