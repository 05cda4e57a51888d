"""The optimizer of a run, over this rank's parts of the parameters.

What works number by number (AdamW, SGD, Lion) steps each rank's part by itself, with torch's own optimizer on plain
tensors, fused where that exists. What looks at a whole matrix (Muon, Adafactor) gathers it, steps it on every rank
that holds a part, alike, and keeps its own part; so it does what one process does, whatever the plan.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from meshwright.model.operators import Linear, Router
from meshwright.model.spec import ModelSpec
from meshwright.model.tensors import read_by_loss
from meshwright.recipe.spec import Optimizer as Settings
from meshwright.runtime.gradients import HeldParameters
from meshwright.runtime.parallel_model import ParallelModel
from meshwright.runtime.shard import local_part
from meshwright.train.lion import Lion
from meshwright.train.muon import MOMENTUM, orthogonalised, scale_of
from meshwright.train.parts import gathered, put


class State(NamedTuple):
    """A tensor that an optimizer keeps of a parameter: laid out as the parameter is, or `whole` on every rank."""

    parameter: str
    """By the name that it has here."""
    name: str
    tensor: Tensor
    whole: bool


class Keeps(Protocol):
    """What keeps tensors from step to step."""

    def states(self) -> Iterable[State]:
        """All of them."""
        ...


class Rule(Protocol):
    """One way to step some of the parameters."""

    def step(self, rate: float) -> None:
        """Take one step at a learning rate."""
        ...

    def states(self) -> Iterator[State]:
        """What it keeps."""
        ...


class Stepper:
    """The optimizer of a ParallelModel by a recipe's settings."""

    def __init__(self, parallel: ParallelModel, settings: Settings) -> None:
        self._held = HeldParameters(parallel.module, parallel.layouts)
        self._rules = _RULES[settings.name](parallel, settings)

    def step(self, rate: float) -> None:
        """Take one step at a learning rate, and forget the gradients."""
        for rule in self._rules:
            rule.step(rate)
        for parameter, _ in self._held:
            parameter.grad = None

    def states(self) -> list[State]:
        """All that it keeps from step to step."""
        return [state for rule in self._rules for state in rule.states()]


_COUNTED = "step"
"""The state in which torch's optimizers count steps."""


class NumberByNumber:
    """A torch optimizer on this rank's parts. `kept` names its tensors of a parameter's shape, zero before the first
    step.
    """

    def __init__(
        self,
        parallel: ParallelModel,
        held: Iterable[str],
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        kept: tuple[str, ...],
    ) -> None:
        layouts = {name: parallel.layouts[name] for name in held}
        self._held = HeldParameters(parallel.module, layouts)
        parts = [nn.Parameter(local_part(parameter).detach()) for parameter, _ in self._held]
        self._parts = dict(zip(layouts, parts, strict=True))
        parameters = [part for part in self._parts.values() if part.numel()]
        self._torch = make(parameters) if parameters else None
        for part in self._parts.values() if self._torch else ():
            state = {name: torch.zeros_like(part) for name in kept if name != _COUNTED}
            count = {_COUNTED: part.new_zeros((), dtype=torch.float32)} if _COUNTED in kept else {}
            self._torch.state[part] = state | count  # type: ignore[union-attr]  # there is one

    def step(self, rate: float) -> None:
        """Take one step."""
        if self._torch is None:
            return
        for part, (parameter, _) in zip(self._parts.values(), self._held, strict=True):
            part.data = local_part(parameter).detach()  # FSDP2 may have moved it
            part.grad = None if parameter.grad is None else local_part(parameter.grad)
        for group in self._torch.param_groups:
            group["lr"] = rate
        self._torch.step()
        for part in self._parts.values():
            part.grad = None

    def states(self) -> Iterator[State]:
        """What torch's optimizer keeps."""
        for name, part in self._parts.items() if self._torch else ():
            for kind, tensor in self._torch.state[part].items():  # type: ignore[union-attr]  # there is one
                yield State(name, kind, tensor, whole=kind == _COUNTED)


class Muon:
    """Hidden matrices by Muon (Jordan 2024), scaled as Liu 2025 does so that AdamW's learning rate serves both. The
    momentum is this rank's part; the product of matrices is of the whole.
    """

    def __init__(self, parallel: ParallelModel, held: Iterable[str], settings: Settings) -> None:
        self._parallel, self._settings = parallel, settings
        self._momentum = settings.momentum or MOMENTUM
        parameters = {name: parallel.module.get_parameter(name) for name in held}
        self._kept = {name: torch.zeros_like(local_part(each).detach()) for name, each in parameters.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take one step."""
        for name, kept in self._kept.items():
            parameter, layout = self._parallel.module.get_parameter(name), self._parallel.layouts[name]
            if parameter.grad is None:
                continue
            gradient, part = local_part(parameter.grad), local_part(parameter)
            kept.lerp_(gradient, 1 - self._momentum)
            update = orthogonalised(gathered(gradient.lerp(kept, self._momentum), layout, parameter))
            own = torch.zeros_like(part)
            put(update.to(part.dtype), own, layout)
            part.mul_(1 - rate * self._settings.weight_decay).add_(own, alpha=-rate * scale_of(update.shape))

    def states(self) -> Iterator[State]:
        """The momentum."""
        return (State(name, "momentum_buffer", kept, whole=False) for name, kept in self._kept.items())


class Adafactor:
    """torch's Adafactor (Shazeer and Stern 2018) on whole tensors, one at a time. What it keeps is small, and whole on
    every rank: means of rows and columns, and the variances of vectors.
    """

    def __init__(self, parallel: ParallelModel, held: Iterable[str], settings: Settings) -> None:
        self._parallel = parallel
        self._whole: dict[str, nn.Parameter] = {}
        self._torch: dict[str, torch.optim.Optimizer] = {}
        for name in held:
            parameter = parallel.module.get_parameter(name)
            shape = parallel.shapes[parallel.layouts[name].name]
            whole = self._whole[name] = nn.Parameter(local_part(parameter).detach().new_empty(0))
            self._torch[name] = torch.optim.Adafactor([whole], lr=1.0, weight_decay=settings.weight_decay)
            self._torch[name].state[whole] = _adafactor_state(parameter, shape)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take one step."""
        for name, whole in self._whole.items():
            parameter, layout = self._parallel.module.get_parameter(name), self._parallel.layouts[name]
            if parameter.grad is None:
                continue
            whole.data = gathered(parameter, layout, parameter)
            whole.grad = gathered(parameter.grad, layout, parameter)
            self._torch[name].param_groups[0]["lr"] = rate
            self._torch[name].step()
            put(whole.data, parameter, layout)
            whole.grad, whole.data = None, whole.new_empty(0)

    def states(self) -> Iterator[State]:
        """What torch's optimizers keep."""
        for name, whole in self._whole.items():
            for kind, tensor in self._torch[name].state[whole].items():
                yield State(name, kind, tensor, whole=True)


def _adafactor_state(parameter: Tensor, shape: torch.Size) -> dict[str, Tensor]:
    """As torch makes it at the first step."""
    step = {_COUNTED: torch.zeros((), dtype=torch.float32)}
    local = local_part(parameter).detach()
    if len(shape) < 2:
        return step | {"variance": local.new_zeros(shape)}
    rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return step | {"row_var": local.new_zeros(rows), "col_var": local.new_zeros(columns)}


def hidden_matrices(spec: ModelSpec) -> set[str]:
    """The names of the parameters that are `matrix` to an optimizer (`model.tensors`), where a module has each by
    itself.
    """
    every = [operator for layer in spec.layers for operator in layer.stack.operators]
    heads = read_by_loss(every)
    return {
        f"{layer.module_path(operator.path)}.weight"
        for layer in spec.layers
        for operator in layer.stack.operators
        if isinstance(operator, Linear | Router) and operator.path not in heads
    }


def _fused(parameters: list[nn.Parameter]) -> bool:
    return parameters[0].device.type in ("cpu", "cuda") and parameters[0].dtype != torch.float16


def _adamw(parallel: ParallelModel, settings: Settings, held: Iterable[str] | None = None) -> list[Rule]:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=_fused(parameters),
        )

    names = parallel.layouts if held is None else held
    return [NumberByNumber(parallel, names, make, (_COUNTED, "exp_avg", "exp_avg_sq"))]


def _sgd(parallel: ParallelModel, settings: Settings) -> list[Rule]:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            fused=_fused(parameters),
        )

    return [NumberByNumber(parallel, parallel.layouts, make, ("momentum_buffer",) if settings.momentum else ())]


def _lion(parallel: ParallelModel, settings: Settings) -> list[Rule]:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Lion(parameters, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay)

    return [NumberByNumber(parallel, parallel.layouts, make, ("exp_avg",))]


def _muon(parallel: ParallelModel, settings: Settings) -> list[Rule]:
    named = hidden_matrices(parallel.place.inputs.model)
    matrices = [held for held, layout in parallel.layouts.items() if layout.name in named]
    others = [held for held in parallel.layouts if held not in matrices]
    return [Muon(parallel, matrices, settings), *_adamw(parallel, settings, others)]


def _adafactor(parallel: ParallelModel, settings: Settings) -> list[Rule]:
    return [Adafactor(parallel, parallel.layouts, settings)]


_RULES: Mapping[str, Callable[[ParallelModel, Any], list[Rule]]] = {
    "adamw": _adamw,
    "sgd": _sgd,
    "lion": _lion,
    "muon": _muon,
    "adafactor": _adafactor,
}
