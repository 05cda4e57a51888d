"""What autograd keeps of a small model, layer by layer, and what a kernel set says that it keeps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from meshwright.cost.saved import input_bytes, shared_bytes, stack_uses
from meshwright.cost.shares import Extent, Learning
from meshwright.cost.uses import storage_of
from tests.model.samples.build import BATCH, Sample

SHARED = "shared"
"""What several layers keep together: masks, tables of rotary positions, an encoder's output."""


ROOT = ("",)
"""The module of what the whole model does with its towers' outputs; it counts to the layer before it."""


class Kept:
    """Notes each storage that autograd saves, once, with the layer that ran when it was saved first. Parameters and
    buffers are left out; what a layer takes beside the first of its inputs is SHARED.
    """

    def __init__(self, module: nn.Module, layers: dict[str, tuple[str, ...]]) -> None:
        self.bytes: dict[str, int] = dict.fromkeys((*layers, SHARED), 0)
        self.current = next(iter(layers))
        self.known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
        self.held: list[Any] = []
        """So that no storage is freed and its place taken by another."""
        self.shared: set[int] = set()
        for name, paths in layers.items():
            for path in paths:
                module.get_submodule(path).register_forward_pre_hook(self._enters(name), with_kwargs=True)

    def _enters(self, name: str) -> Callable[..., None]:
        entered: list[nn.Module] = []

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if module in entered:  # a dropout that serves a second place
                return
            entered.append(module)
            self.current = name
            beside = (args[1:], kwargs) if args else list(kwargs.values())[1:]
            for leaf in tree_leaves(beside):
                if isinstance(leaf, Tensor):
                    self.held.append(leaf)
                    self.shared.add(leaf.untyped_storage().data_ptr())

        return note

    def pack(self, tensor: Tensor) -> Tensor:
        """A hook for what autograd saves."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.held.append(storage)
            self.bytes[SHARED if storage.data_ptr() in self.shared else self.current] += storage.nbytes()
        return tensor


def measured(
    sample: Sample, attention: str, dtype: torch.dtype, *, recompute: str = "none", compiled: bool = False
) -> dict[str, int]:
    """Bytes that each layer keeps from forward to backward, and that they keep together. `compiled`: each numbered
    layer is, as far as the partitioner that says what is kept goes.
    """
    torch.manual_seed(0)
    module, layers = sample.build(attention).to(dtype).train(), sample.spec.layers
    module.config.get_text_config().use_cache = False
    kept = Kept(module, {layer.name: layer.modules for layer in layers if layer.modules != ROOT})
    for numbered in (module.get_submodule(layer.modules[0]) for layer in layers if layer.index is not None):
        if recompute == "full":
            _recompute(numbered)
        if compiled:
            numbered.forward = torch.compile(numbered.forward, backend="aot_eager_decomp_partition", dynamic=False)
    batch = {name: _cast(value, dtype) for name, value in sample.batch(sample.config).items()}
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        module(**batch)
    return kept.bytes


def _recompute(layer: nn.Module) -> None:
    forward = layer.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    layer.forward = again


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A copy of its own, in the compute dtype where it is a tensor of numbers."""
    if not isinstance(value, Tensor):
        return value
    return value.to(dtype) if value.is_floating_point() else value.clone()


def predicted(sample: Sample, kernels: str, element: float, *, recompute: str = "none") -> dict[str, float]:
    """The same from the kernel set's formulas, on a CPU; without what the caller of the model holds (logits)."""
    spec = sample.spec
    lengths = {stream: sample.length(stream) for stream in spec.streams}
    storage = storage_of(element, "gloo", spec.family)
    found: dict[str, float] = {}
    flows: dict[str, bool] = {}
    for layer in spec.layers:
        stack, fed = layer.stack, any(flows[read] for read in layer.reads)
        extent = Extent(BATCH, lengths, stack.stream)
        uses = stack_uses(stack, kernels, extent, storage, Learning(fed=fed))
        found[layer.name] = sum(use.kept - use.held for use in uses)
        if recompute == "full" and layer.index is not None:
            found[layer.name] = input_bytes(spec, layer, extent, storage)
        flows[layer.name] = fed or stack.parameters > 0
        if layer.modules == ROOT:
            found[layer.reads[-1]] += found.pop(layer.name)
    found[SHARED] = shared_bytes(spec, kernels, lengths, BATCH, storage) if recompute == "none" else 0.0
    return found
