"""What a script saves of a model under a plan, and of its own torch optimizer: whole tensors, whoever holds what."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.errors import PlanError
from meshwright.runtime.parallel_model import ParallelModel
from meshwright.train import checkpoint
from meshwright.train.agreement import on_first
from meshwright.train.checkpoint import FACTS, PARAMETERS, contents
from meshwright.train.checkpoint_boxes import CheckpointError, Stored
from meshwright.train.optimizers import State
from meshwright.train.parts import Piece
from meshwright.version import __version__

BUFFERS = "buffers"
_BY_NUMBER = frozenset(
    getattr(torch.optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)
"""torch's optimizers that work number by number, so that parts of tensors step as the whole ones would."""


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises PlanError where an optimizer may look at more than one number at a time."""
    if type(optimizer) not in _BY_NUMBER:
        known = ", ".join(sorted(each.__name__ for each in _BY_NUMBER))
        raise PlanError(
            f"the optimizer {type(optimizer).__name__} may look at whole tensors, and ranks hold parts of them under a "
            f"plan; take one that works number by number ({known}), or train with `meshwright train`"
        )


def kept_buffers(module: nn.Module) -> list[str]:
    """The buffers that a module's state has, by name."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return [name for name in module.state_dict() if name not in parameters]


def on_meta(module: nn.Module) -> bool:
    """Whether a module has no values yet: each rank makes its part of them."""
    return any(each.is_meta for each in module.parameters())


class TorchStates:
    """What torch optimizers keep of this rank's parts of the parameters."""

    def __init__(self, parallel: ParallelModel, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._parallel, self._optimizers = parallel, tuple(optimizers)
        for each in self._optimizers:
            _take_no_step(each)

    def states(self) -> Iterator[State]:
        """The tensors: of a parameter's shape, or a single number, which all its holders have."""
        for held in self._parallel.layouts:
            parameter = self._parallel.module.get_parameter(held)
            for optimizer in self._optimizers:
                for kind, tensor in optimizer.state.get(parameter, {}).items():
                    if isinstance(tensor, Tensor):
                        yield State(held, kind, tensor, whole=tensor.dim() == 0 and parameter.dim() > 0)


@torch.no_grad()
def _take_no_step(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer that has taken no step make its states, and change nothing."""
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    before = [each.grad for each in parameters]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for each in parameters:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    for each, gradient in zip(parameters, before, strict=True):
        each.grad = gradient
        for tensor in optimizer.state[each].values():
            if isinstance(tensor, Tensor) and tensor.dim() == 0:
                tensor.zero_()  # it counts steps, and none was taken
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def stored(parallel: ParallelModel, optimizers: Iterable[torch.optim.Optimizer] = ()) -> dict[str, Stored]:
    """Of a checkpoint what this rank holds: parameters, buffers, and what optimizers keep. Views, as `contents`."""
    found = contents(parallel, TorchStates(parallel, optimizers))
    for name in kept_buffers(parallel.module):
        buffer = parallel.module.get_buffer(name)
        found[f"{BUFFERS}/{name}"] = Stored(buffer.shape, (Piece((0,) * buffer.dim(), buffer),))
    return found


def of_the_model(found: Mapping[str, Stored]) -> dict[str, Stored]:
    """Of what is stored the model's part."""
    return {name: each for name, each in found.items() if name.startswith((f"{PARAMETERS}/", f"{BUFFERS}/"))}


def facts_of(parallel: ParallelModel, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    return {
        "step": parallel.step,
        "model": parallel.place.inputs.model.fingerprint,
        "optimizer": [type(each).__name__ for each in optimizers],
        "processes": dist.get_world_size(),
        "meshwright": __version__,
        "torch": torch.__version__,
    }


def checked(place: Path, parallel: ParallelModel, optimizers: Iterable[torch.optim.Optimizer] = ()) -> dict[str, Any]:
    """The facts of a checkpoint that belongs to a model and its optimizers. Every rank must call it. Raises
    CheckpointError on all where it was not saved under a plan, is of something else, or is corrupt.
    """
    if not on_first((place / FACTS).is_file):
        raise CheckpointError(
            f"{place} was not saved under a plan: it has no {FACTS}. Load its weights into the model before "
            "(transformers: from_pretrained), and begin with them"
        )
    facts, own = checkpoint.check(place), facts_of(parallel, optimizers)
    if facts["model"] != own["model"]:
        raise CheckpointError(f"the checkpoint {place} is of another model: take another folder")
    if own["optimizer"] and facts["optimizer"] != own["optimizer"]:
        raise CheckpointError(
            f"the checkpoint {place} has states of {facts['optimizer']}, and the script steps {own['optimizer']}"
        )
    return facts


def whole_state(parallel: ParallelModel) -> dict[str, Tensor]:
    """Every parameter and buffer of the untouched module, whole, by its name, on rank 0 and in the host's memory; on
    other ranks nothing. Every rank must call it.
    """
    first, found = dist.get_rank() == 0, {}
    for name in parallel.names:
        whole = parallel.full_parameter(name)
        if first:
            found[name] = whole.cpu()
    if first:
        found |= {name: parallel.module.get_buffer(name).cpu() for name in kept_buffers(parallel.module)}
    return found


def check_buffers(module: nn.Module, parts: int) -> None:
    """Raises PlanError where a module that is cut into stages on several groups has buffers to save."""
    buffers = kept_buffers(module)
    if parts > 1 and buffers:
        raise PlanError(
            f"the model keeps buffers ('{buffers[0]}'), and no group of a pipeline has all of them: take a plan of one "
            "group"
        )
