"""A stage of a module: the module's own forward, with stand-ins for the layers of other stages.

No tracer: the module's own code runs on every stage, from the embedding to the head. Layers of other stages are
stand-ins that hand on what they get; the first layer of the stage takes what was received in its place, and what
reaches the first layer after the stage is the stage's output. So what else a model makes for its layers (masks,
position ids, rotary tables) every stage makes by itself from the batch, and nothing but activations crosses a cut.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from meshwright.errors import PlanError
from meshwright.model.operators import Embedding
from meshwright.model.spec import ModelSpec

_TUPLES = {"FalconDecoderLayer": 2, "T5Block": 3}
"""Classes of transformers whose layers put out more than activations, which come first: how many values."""


class StandIn(nn.Module):
    """In the place of a layer's module that another stage holds: no parameters, nothing to do.

    It has the module's attributes, which a model may ask for. It hands on the first argument as it came; where the
    module makes what the layers work on (`makes`: embeddings of all kinds), zeros of the shape that the module would
    give. An embedding that `adds` to another's (positions) gives those of one position.
    """

    def __init__(self, module: nn.Module, *, makes: bool = False, adds: bool = False) -> None:
        super().__init__()
        vars(self).update((name, value) for name, value in vars(module).items() if not name.startswith("_"))
        vars(self).pop("forward", None)
        self._values = _TUPLES.get(type(module).__name__)
        self._width = module.embedding_dim if isinstance(module, nn.Embedding) else None
        makes = (makes or self._width is not None) and any(True for _ in module.parameters())
        self._adds, self._shapes = adds, (_on_meta(module),) if makes else ()  # a tuple: no part of this module

    def __getattr__(self, name: str) -> Any:
        """What the module has inside, without values."""
        shapes = vars(self).get("_shapes")
        return getattr(shapes[0], name) if shapes else super().__getattr__(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the class says; zeros take no memory."""
        first = args[0] if args else next(iter(kwargs.values()))
        if not self._shapes:
            return first if self._values is None else (first, *[None] * (self._values - 1))
        like = next(self._shapes[0].parameters())
        if self._width is not None:
            shape = (1,) if self._adds else first.shape  # the model has the ids of all positions, this rank a part
            shape = (*shape, self._width)
        else:
            meta = [_like(each, like) for each in args]
            named = {name: _like(each, like) for name, each in kwargs.items()}
            shape = self._shapes[0](*meta, **named).shape
        return torch.zeros((), dtype=like.dtype, device=first.device).expand(shape)


def _like(value: Any, parameter: Tensor) -> Any:
    """On meta, and of the parameter's dtype, where what comes in may be cast already."""
    if not isinstance(value, Tensor):
        return value
    return value.to("meta", parameter.dtype if value.is_floating_point() else None)


def _on_meta(module: nn.Module) -> nn.Module:
    """A copy without values, which only shapes come out of."""
    tensors = (*module.parameters(), *module.buffers())
    memory: dict[int, Any] = {id(each): each.detach().to("meta") for each in tensors}
    memory |= {id(each): nn.Parameter(memory[id(each)], requires_grad=False) for each in module.parameters()}
    return deepcopy(module, memory).eval()


def keep_layers(module: nn.Module, spec: ModelSpec, kept: Collection[str]) -> nn.Module:
    """Put stand-ins in the place of all layers but the kept ones, which frees their parameters. Returns the module."""
    return _keep(module, spec, kept, copy=False)


def view_of_layers(module: nn.Module, spec: ModelSpec, kept: Collection[str]) -> nn.Module:
    """The module as if it had the kept layers alone: its containers are copies, all else is shared."""
    return _keep(module, spec, kept, copy=True)


def _keep(module: nn.Module, spec: ModelSpec, kept: Collection[str], *, copy: bool) -> nn.Module:
    layer_of = {path: layer.name for layer in spec.layers for path in layer.modules}
    containers = {path[:at] for path in layer_of for at, letter in enumerate(path) if letter == "."} | {""}
    tables = [
        (layer.module_path(operator.path), operator.split is None)
        for layer in spec.layers
        for operator in layer.stack.operators
        if isinstance(operator, Embedding)
    ]
    adds = {path for path, whole in tables if whole}
    makes = {path for path, _ in tables} | {path for layer in spec.layers if not layer.reads for path in layer.modules}

    def visit(module: nn.Module, path: str) -> nn.Module:
        if path in layer_of:
            drops = spec.sides and isinstance(module, nn.Dropout)  # of an embedding's, and of what comes last (T5)
            stays = drops or layer_of[path] in kept or isinstance(module, StandIn)
            return module if stays else StandIn(module, makes=path in makes, adds=path in adds)
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
    """What a model makes of a batch's inputs: one of transformers', or one that takes the first of them by its place,
    and returns logits alone.
    """
    config = getattr(module, "config", None)
    if config is not None:
        logits = module(**inputs, **({"use_cache": False} if hasattr(config, "use_cache") else {})).logits
    else:
        first, *others = inputs
        logits = module(inputs[first], **{name: inputs[name] for name in others})
    if not isinstance(logits, Tensor):
        raise PlanError(f"the module returns {type(logits).__name__}, and the runtime wants logits alone")
    return logits


class Unit(NamedTuple):
    """What FSDP2 gathers and reduces as one."""

    module: FSDPModule
    state: str | None
    """None of what is cast alone, on this rank by itself."""


class Gate(NamedTuple):
    """Where activations come into a stage, or leave it: at what a module is given; or, where nothing follows it in its
    stack (an encoder's last), at what it puts out.
    """

    module: nn.Module
    puts_out: bool = False


class StageModule:
    """One stage on this rank. What is received comes in at the gate `first`, and what the stage puts out leaves at the
    gate `after`; none where the batch comes in, and where logits go out.
    """

    def __init__(self, module: nn.Module, units: list[Unit], first: Gate | None, after: Gate | None) -> None:
        self.module, self.units = module, units
        self._received: Tensor | None = None
        self._output: Tensor | None = None
        self._is_last, self._synced = after is None, (True, True)
        if first is not None and first.puts_out:
            first.module.register_forward_hook(lambda *_: self._received)
        elif first is not None:
            first.module.register_forward_pre_hook(self._put_in, prepend=True)
        if after is not None and after.puts_out:
            after.module.register_forward_hook(lambda _, __, output: self._take_out(_, (output,))[0])
        elif after is not None:
            after.module.register_forward_pre_hook(self._take_out)

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

    def reshard(self) -> None:
        """Let go of gathered parameters that no backward follows to let go of."""
        for module, _ in self.units:
            module.reshard()

    def sync(self, *, last: bool, each: bool) -> None:
        """Whether the next backward is the step's last, and whether others reduce gradients of zero2 and zero3 too.
        Parameters of zero1 and zero2 stay gathered until the last.
        """
        for module, state in self.units if (last, each) != self._synced else ():
            add_up = state is None or last or (each and state != "zero1")
            module.set_requires_gradient_sync(add_up, recurse=False)
            if state != "zero3":
                module.set_reshard_after_backward(last, recurse=False)
        self._synced = last, each
