"""Lightning Fabric under a plan."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from meshwright import api
from meshwright.adapters.batches import WholeBatches
from meshwright.adapters.state import (
    check_buffers,
    check_optimizer,
    checked,
    facts_of,
    of_the_model,
    on_meta,
    stored,
    whole_state,
)
from meshwright.errors import PlanError
from meshwright.runtime.parallel_model import ParallelModel
from meshwright.runtime.shard import local_part
from meshwright.train import checkpoint
from meshwright.train.checkpoint_boxes import CheckpointError

try:
    from lightning_fabric.plugins.precision import Precision
    from lightning_fabric.strategies.ddp import DDPStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f'{error}: pip install "meshwright[fabric]"') from None

REST = "rest.pt"
"""Of a checkpoint: what a script saved beside its model and optimizers."""


class Outcome(NamedTuple):
    """What a model under a plan puts out."""

    loss: Tensor
    """The mean over all that counts in the whole batch, the same on every rank."""

    @property
    def logits(self) -> Tensor:
        """Raises PlanError: no rank has all of them."""
        raise PlanError("a model under a plan puts out its loss alone, since no rank has all logits")


class PlannedModule(nn.Module):
    """A module under a plan as a script calls it: with the whole batch and its labels, by name or as one mapping.

    A pipeline's forwards and backwards are under way together, so that a loss comes with its gradients already; its
    backward hands them out, times what the loss is multiplied with.
    """

    def __init__(self, parallel: ParallelModel) -> None:
        super().__init__()
        self.module, self.parallel = parallel.module, parallel
        self._anchor, self._batches = torch.ones((), requires_grad=True), WholeBatches(parallel)

    def forward(self, batch: Mapping[str, Tensor] | None = None, /, **named: Tensor) -> Outcome:
        """The loss; in evaluation mode, or without gradients, as ParallelModel.evaluate gives it."""
        whole = self._batches.of({**(batch or {}), **named})
        if not (self.training and torch.is_grad_enabled()):
            return Outcome(self.parallel.evaluate(whole))
        return Outcome(_Loss.apply(self._anchor, self.parallel, whole))  # type: ignore[no-untyped-call]


class _Loss(torch.autograd.Function):
    """A step's loss, with its gradients in waiting."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, parallel: ParallelModel, batch: dict[str, Tensor]) -> Tensor:
        parameters = list(parallel.module.parameters())
        before = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        with torch.enable_grad():
            loss = parallel.forward_backward(batch)
        ctx.waiting = [(each, each.grad) for each in parameters if each.grad is not None]
        for each, gradient in zip(parameters, before, strict=True):
            each.grad = gradient
        return loss

    @staticmethod
    @torch.no_grad()
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        if ctx.waiting is None:
            raise PlanError("backward was called twice on one loss: call the model again")
        for parameter, gradient in ctx.waiting:
            local_part(gradient).mul_(gradients[0].to(gradient.device, local_part(gradient).dtype))
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                local_part(parameter.grad).add_(local_part(gradient))
        ctx.waiting = None
        return None, None, None


class MeshStrategy(DDPStrategy):
    """A plan as a strategy: `Fabric(strategy=MeshStrategy("plan.yaml"), devices=8)`, with as many processes as the plan
    has. `fabric.setup(model, optimizer)` puts the model under the plan; the script then calls `model(**batch)` with the
    whole batch and its labels, and `fabric.backward` on the loss, under pipelines too.

    Loaders that `fabric.setup_dataloaders` prepares give every rank the whole batch. The recipe says precision, loss,
    and the seed of dropout. Checkpoints of `fabric.save` are folders, and go on under any other plan of the model.
    `recipe` and `cluster` as for `meshwright.parallelize`; `more` as for Fabric's DDPStrategy.
    """

    def __init__(self, plan: Any, *, recipe: Any = None, cluster: Any = None, **more: Any) -> None:
        super().__init__(**more)
        self._given = partial(api.parallelize, plan=plan, recipe=recipe, cluster=cluster)
        self._planned: PlannedModule | None = None
        self._backward_sync_control = None  # gradients are reduced with the loss

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Every rank reads all samples, in one order."""
        return {"num_replicas": 1, "rank": 0}

    def module_to_device(self, module: nn.Module) -> None:
        """What is on meta stays there until each rank makes its part."""
        if not on_meta(module):
            super().module_to_device(module)

    def setup_module(self, module: nn.Module) -> PlannedModule:  # type: ignore[override]  # Fabric's is one of DDP's
        """Put a module under the plan. Raises PlanError where the runtime cannot run it, or for a second module."""
        if self._planned is not None:
            raise PlanError("a plan is for one model: set up others with a strategy of their own")
        if type(self.precision) is not Precision and self.precision.precision not in ("64-true", "32-true"):
            raise PlanError(f"precision '{self.precision.precision}' beside a plan: the recipe says it; leave it out")
        module.train()
        parallel = self._given(module)
        check_buffers(module, len(parallel.plan.groups))
        self._planned = PlannedModule(parallel)
        return self._planned

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[PlannedModule, list[Optimizer], Any]:
        """The same, with optimizers over the module's parameters, which then hold this rank's parts."""
        names = {id(each): name for name, each in module.named_parameters()}
        planned = self.setup_module(module)
        for each in optimizers:
            take_over(each, names, planned.parallel)
        return planned, [self.setup_optimizer(each) for each in optimizers], scheduler

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Raises PlanError for an optimizer that looks at whole tensors, or holds what is not under the plan."""
        check_optimizer(optimizer)
        here = {id(each) for each in self._model.module.parameters()}
        if any(id(each) not in here for group in optimizer.param_groups for each in group["params"]):
            raise PlanError(
                "the optimizer holds parameters of the untouched model: make it after fabric.setup_module, or give "
                "both to fabric.setup"
            )
        return optimizer

    @property
    def _model(self) -> PlannedModule:
        if self._planned is None:
            raise PlanError("no model is under the plan yet: call fabric.setup(model, optimizer) first")
        return self._planned

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clip by the norm over all ranks. Raises PlanError for another norm than the 2-norm."""
        if norm_type != 2.0:
            raise PlanError(f"norm_type is {norm_type}, and gradients of a plan are clipped by their 2-norm: 2.0")
        norm = self._model.parallel.gradient_norm()
        if error_if_nonfinite and not bool(norm.isfinite()):
            raise RuntimeError(f"the gradients' norm is {float(norm)}; to go on regardless: error_if_nonfinite=False")
        return self._model.parallel.clip_grad_norm_(max_norm)

    def clip_gradients_value(self, module: nn.Module, optimizer: Optimizer, clip_val: float) -> None:
        """Clip each number."""
        for each in self._model.module.parameters():
            if each.grad is not None:
                local_part(each.grad).clamp_(-clip_val, clip_val)

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Whole weights, on rank 0. Every rank must call it."""
        return whole_state(self._model.parallel)

    def save_checkpoint(
        self,
        path: Any,
        state: dict[str, Any],
        storage_options: Any = None,
        filter: Any = None,  # noqa: A002  Fabric's name
    ) -> None:
        """A folder with the model, its optimizers, and what else is in `state`. Every rank must call it."""
        if filter or storage_options:
            raise PlanError("a checkpoint of a plan is saved whole: leave out 'filter' and 'storage_options'")
        parallel, optimizers = self._model.parallel, _optimizers(state)
        rest = {name: _state_of(each) for name, each in state.items() if not isinstance(each, PlannedModule)}
        facts = facts_of(parallel, optimizers.values())
        place = Path(path)
        checkpoint.write(
            place, stored(parallel, optimizers.values()), facts, then=lambda: torch.save(rest, place / REST)
        )

    def load_checkpoint(
        self, path: Any, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Fill model, optimizers and what else is in `state`; returns what was saved beside these. Every rank must call
        it. Raises CheckpointError where the folder is none, or lacks something that `state` has.
        """
        place, parallel = Path(path), self._model.parallel
        wanted = {"model": state} if isinstance(state, nn.Module) else (state or {})
        optimizers = _optimizers(wanted)
        facts = checked(place, parallel, optimizers.values())
        found = stored(parallel, optimizers.values())
        checkpoint.read(place, found if optimizers else of_the_model(found))
        parallel.step = int(facts["step"])
        rest: dict[str, Any] = torch.load(place / REST, weights_only=weights_only is not False, map_location="cpu")
        missing = [name for name in wanted if name not in rest and not isinstance(wanted[name], nn.Module)]
        if missing and strict:
            raise CheckpointError(f"the checkpoint {place} has no '{missing[0]}'; to leave it as it is: strict=False")
        for name in wanted.keys() & rest.keys():
            _fill(wanted, name, rest.pop(name))
        return rest


def take_over(optimizer: Optimizer, names: Mapping[int, str], parallel: ParallelModel) -> None:
    """Let an optimizer of the untouched module hold this rank's parts, in the groups that it has. `names` are those of
    the parameters that it holds, by their id.

    Raises PlanError where it has taken a step already, or holds what is none of the module's.
    """
    held = {layout.name: name for name, layout in parallel.layouts.items()}
    if optimizer.state:
        raise PlanError("the optimizer has taken steps before its model went under the plan: set both up first")
    for group in optimizer.param_groups:
        if any(id(each) not in names for each in group["params"]):
            raise PlanError("the optimizer holds a parameter that is none of the model's: give it the model's alone")
        own = [held[names[id(each)]] for each in group["params"] if names[id(each)] in held]
        group["params"] = [parallel.module.get_parameter(name) for name in own]
        if len({each.device_mesh if isinstance(each, DTensor) else None for each in group["params"]}) > 1:
            group |= {"foreach": False, "fused": False}  # they take no mixture of meshes


def _optimizers(state: Mapping[str, Any]) -> dict[str, Optimizer]:
    return {name: each for name, each in state.items() if isinstance(each, Optimizer)}


def _state_of(each: Any) -> Any:
    """Of an optimizer what is no tensor's: the options of its groups."""
    if isinstance(each, Optimizer):
        return [{name: value for name, value in group.items() if name != "params"} for group in each.param_groups]
    return each.state_dict() if hasattr(each, "state_dict") else each


def _fill(wanted: dict[str, Any], name: str, saved: Any) -> None:
    each = wanted[name]
    if isinstance(each, Optimizer):
        for group, options in zip(each.param_groups, saved, strict=True):
            group |= {kind: value for kind, value in options.items() if kind not in ("foreach", "fused")}
    elif hasattr(each, "load_state_dict"):
        each.load_state_dict(saved)
    else:
        wanted[name] = saved
