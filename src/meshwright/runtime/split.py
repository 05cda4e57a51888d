"""Putting a layer's tensor parallelism onto its modules: which parameters are cut how, and what each forward then
does.
"""

from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from meshwright.model.operators import Embedding, Linear
from meshwright.model.spec import Layer, Part
from meshwright.runtime.mesh import Peers
from meshwright.runtime.shard import Cut
from meshwright.runtime.tensor import enter_split_block, is_transposed, row_forward, vocabulary_forward

LOCAL_SIZES: dict[str, tuple[str, ...]] = {"GPT2Attention": ("split_size",)}
"""Attributes of attention modules, by class, that count values which a rank holds only a share of."""


class SplitParameter(NamedTuple):
    """A parameter to be cut: the module that owns it, its attribute, and the cut."""

    module: nn.Module
    attribute: str
    path: str
    cut: Cut


def split_layer(root: nn.Module, layer: Layer, peers: Peers) -> list[SplitParameter]:
    """Prepare a layer's modules for slices over `peers`, and name the parameters to cut. The caller cuts them."""
    return [found for part in layer.stack.parts for found in _split_part(root, layer, part, peers)]


def _split_part(root: nn.Module, layer: Layer, part: Part, peers: Peers) -> Iterable[SplitParameter]:
    linears = [(op, layer.module_path(op.path)) for op in part.operators if isinstance(op, Linear) and op.split]
    tables = [(op, layer.module_path(op.path)) for op in part.operators if isinstance(op, Embedding) and op.split]
    for table, path in tables:
        module = root.get_submodule(path)
        assert isinstance(module, nn.Embedding)
        vars(module)["forward"] = vocabulary_forward(module, peers, table.rows // peers.size)
        yield SplitParameter(module, "weight", path, Cut(0, peers))
    if linears:
        block = root.get_submodule(common_module([path for _, path in linears]))
        enter_split_block(block, peers)
        for attribute in LOCAL_SIZES.get(type(block).__name__, ()):
            setattr(block, attribute, getattr(block, attribute) // peers.size)
    for linear, path in linears:
        yield from _split_linear(root.get_submodule(path), linear, path, peers)


def _split_linear(module: nn.Module, linear: Linear, path: str, peers: Peers) -> Iterable[SplitParameter]:
    transposed = is_transposed(module)
    if linear.split == "column":
        yield SplitParameter(module, "weight", path, Cut(1 if transposed else 0, peers, linear.segments))
        if module.bias is not None:
            yield SplitParameter(module, "bias", path, Cut(0, peers, linear.segments))
        _resize(module, ("nf",) if transposed else ("out_features",), peers.size)
    else:
        vars(module)["forward"] = row_forward(module, peers)
        yield SplitParameter(module, "weight", path, Cut(0 if transposed else 1, peers))
        _resize(module, ("nx",) if transposed else ("in_features",), peers.size)


def _resize(module: nn.Module, attributes: tuple[str, ...], ways: int) -> None:
    for attribute in attributes:
        setattr(module, attribute, getattr(module, attribute) // ways)


def common_module(paths: list[str]) -> str:
    """The path of the deepest module that holds all of these: ['a.b.c', 'a.b.d'] → 'a.b'; of one path, itself."""
    steps = [path.split(".") for path in paths]
    depth = 0
    while all(len(step) > depth and step[depth] == steps[0][depth] for step in steps):
        depth += 1
    return ".".join(steps[0][:depth])
