"""Giving a module on meta its values, a few layers at a time: of each parameter this rank's slice alone.

What is asked for is whole within a layer until FSDP2 shards it, so a rank never holds more than its part of the model
and one layer.
"""

from collections.abc import Iterable, Mapping
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.runtime.initial import InitialValues
from meshwright.runtime.shard import Layout


class Builder:
    """Makes the tensors of one module, each once. A module that has its values is left as it is."""

    def __init__(self, module: nn.Module, values: InitialValues | None, device: torch.device) -> None:
        self._values, self.device = values, device
        self._buffers = {id(buffer): name for name, buffer in module.named_buffers()}
        self._parameters: dict[int, Layout] = {}
        self._replaced: list[Tensor] = []  # they live on meta, and keep their ids taken
        self._made: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # FSDP2 lets go of whole ones

    def lay_out(self, module: nn.Module, layouts: Mapping[str, Layout]) -> None:
        """Tell how the parameters lie that the module has now."""
        self._parameters = {id(module.get_parameter(name)): layout for name, layout in layouts.items()}

    def fill(self, modules: Iterable[nn.Module]) -> None:
        """Put tensors with values in the place of those on meta, in these modules and all inside of them."""
        if self._values is None:
            return
        for module in (inner for each in modules for inner in each.modules()):
            for kept in (module._parameters, module._buffers):
                for name, tensor in kept.items():
                    if tensor is not None and tensor.is_meta:
                        kept[name] = self._real(tensor)  # type: ignore[assignment]

    def _real(self, old: Tensor) -> Tensor:
        made = self._made.get(id(old))
        if made is None:
            made = self._made[id(old)] = self._make(old)
            self._replaced.append(old)
        return made

    def _make(self, old: Tensor) -> Tensor:
        assert self._values is not None
        layout = self._parameters.get(id(old))
        if layout is None:
            return self._values.make(self._buffers[id(old)], self.device)
        whole = self._values.make(layout.name, self.device)
        part = whole if layout.cut is None else layout.cut.take(whole, layout.name)
        return nn.Parameter(part, requires_grad=old.requires_grad)


def device_of(module: nn.Module) -> torch.device:
    """Where a module's tensors are, or will be: of one on meta, where the default process group works."""
    found = next((each.device for each in module.parameters() if not each.is_meta), None)
    if found is not None:
        return found
    accelerator = None if dist.get_backend() == "gloo" else torch.accelerator.current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
