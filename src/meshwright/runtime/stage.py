"""A stage of a module: the module's own forward, with stand-ins for the layers of other stages.

No tracer: the module's own code runs on every stage, from the embedding to the head. Layers of other stages are
stand-ins that hand on what they get; the first layer of the stage takes what was received in its place, and what
reaches the first layer after the stage is the stage's output. So what else a model makes for its layers (masks,
position ids, rotary tables) every stage makes by itself from the batch, and nothing but activations crosses a cut.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from meshwright.errors import PlanError
from meshwright.model.operators import Embedding
from meshwright.model.spec import ModelSpec


class StandIn(nn.Module):
    """In the place of a layer's module that another stage holds: no parameters, nothing to do.

    It has the module's plain attributes, which a model may ask for. An embedding's gives zeros: of the same shape, or
    where it `adds` to another's (positions), of one position.
    """

    def __init__(self, module: nn.Module, *, adds: bool = False) -> None:
        super().__init__()
        self._adds = adds
        self._embeds: tuple[int, torch.dtype] | None = None
        if isinstance(module, nn.Embedding):
            self._embeds = module.embedding_dim, module.weight.dtype
        vars(self).update((name, value) for name, value in vars(module).items() if not name.startswith("_"))
        vars(self).pop("forward", None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument as it came; of an embedding, zeros that take no memory."""
        first = args[0] if args else next(iter(kwargs.values()))
        if self._embeds is None:
            return first
        width, dtype = self._embeds
        shape = (1,) if self._adds else first.shape  # the model has the ids of all positions, this rank a part of them
        return torch.zeros((), dtype=dtype, device=first.device).expand(*shape, width)


def keep_layers(module: nn.Module, spec: ModelSpec, kept: Collection[str]) -> nn.Module:
    """Put stand-ins in the place of all layers but the kept ones, which frees their parameters. Returns the module."""
    return _keep(module, spec, kept, copy=False)


def view_of_layers(module: nn.Module, spec: ModelSpec, kept: Collection[str]) -> nn.Module:
    """The module as if it had the kept layers alone: its containers are copies, all else is shared."""
    return _keep(module, spec, kept, copy=True)


def _keep(module: nn.Module, spec: ModelSpec, kept: Collection[str], *, copy: bool) -> nn.Module:
    layer_of = {path: layer.name for layer in spec.layers for path in layer.modules}
    containers = {path[:at] for path in layer_of for at, letter in enumerate(path) if letter == "."} | {""}
    adds = {
        layer.module_path(operator.path)
        for layer in spec.layers
        for operator in layer.stack.operators
        if isinstance(operator, Embedding) and not operator.split
    }

    def visit(module: nn.Module, path: str) -> nn.Module:
        if path in layer_of:
            stays = layer_of[path] in kept or isinstance(module, StandIn)
            return module if stays else StandIn(module, adds=path in adds)
        if path not in containers:
            return module
        found = _shallow_copy(module) if copy else module
        for name, child in list(module.named_children()):
            found._modules[name] = visit(child, f"{path}.{name}".lstrip("."))
        return found

    return visit(module, "")


def _shallow_copy(module: nn.Module) -> nn.Module:
    """The same attributes, in dictionaries of its own: what is registered on the copy stays off the module."""
    copy = type(module).__new__(type(module))
    for name, value in vars(module).items():
        vars(copy)[name] = value.copy() if isinstance(value, dict) else value
    return copy


def logits_of(module: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a language model makes of a batch's inputs: one of transformers', or one that takes tokens first, and
    returns logits alone.
    """
    if hasattr(module, "config"):
        logits = module(**inputs, use_cache=False).logits
    else:
        others = {name: value for name, value in inputs.items() if name != "input_ids"}
        logits = module(inputs["input_ids"], **others)
    if not isinstance(logits, Tensor):
        raise PlanError(f"the module returns {type(logits).__name__}, and the runtime wants logits alone")
    return logits


class Unit(NamedTuple):
    """What FSDP2 gathers and reduces as one."""

    module: FSDPModule
    state: str


class StageModule:
    """One stage on this rank. `first` is the module that takes what is received, `after` the one whose input is the
    stage's output; none where the batch comes in, and where logits go out.
    """

    def __init__(self, module: nn.Module, units: list[Unit], first: nn.Module | None, after: nn.Module | None) -> None:
        self.module, self.units = module, units
        self._received: Tensor | None = None
        self._output: Tensor | None = None
        self._is_last, self._synced = after is None, (True, True)
        if first is not None:
            first.register_forward_pre_hook(self._put_in, prepend=True)
        if after is not None:
            after.register_forward_pre_hook(self._take_out)

    def _put_in(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._received, *args[1:])

    def _take_out(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._output = args[0]
        return (args[0].detach(), *args[1:])  # what comes after is nobody's

    def forward(self, inputs: Mapping[str, Tensor], received: Tensor | None) -> Tensor:
        """Activations that leave the stage; of the last stage, logits. `inputs` are the batch's, whatever the stage."""
        self._received = received
        logits = logits_of(self.module, inputs)
        output = logits if self._is_last else self._output
        self._received = self._output = None
        assert isinstance(output, Tensor)
        return output

    def parameters(self) -> list[nn.Parameter]:
        """Those of its layers."""
        return list(self.module.parameters())

    def sync(self, *, last: bool, each: bool) -> None:
        """Whether the next backward is the step's last, and whether others reduce gradients of zero2 and zero3 too.
        Parameters of zero1 and zero2 stay gathered until the last.
        """
        for module, state in self.units if (last, each) != self._synced else ():
            module.set_requires_gradient_sync(last or (each and state != "zero1"))
            if state != "zero3":
                module.set_reshard_after_backward(last)
        self._synced = last, each
