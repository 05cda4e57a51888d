"""ParallelModel: a module under a plan, on this rank, for one's own training loop."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwright.runtime.batch import Feed
from meshwright.runtime.gradients import (
    HeldParameters,
    add_back,
    clip_by_norm,
    global_norm,
    set_aside,
    sum_replicas,
    sum_tied,
)
from meshwright.runtime.names import Names
from meshwright.runtime.pipeline import Pipeline
from meshwright.runtime.place import Place
from meshwright.runtime.shard import Layout


class ParallelModel:
    """A module under a plan. `module` is the one that was given; its parameters are now this rank's parts.

    parallel = mw.parallelize(module, plan)
    optimizer = torch.optim.AdamW(parallel.parameter_groups())
    for batch in batches:                                  # the whole global batch, equal on all ranks
        loss = parallel.forward_backward(batch)
        parallel.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    """

    def __init__(
        self, module: nn.Module, place: Place, layouts: Mapping[str, Layout], pipeline: Pipeline, names: Names
    ) -> None:
        self.module, self.place, self.layouts = module, place, layouts
        self.plan = place.inputs.plan
        self.names = tuple(names.shapes)
        """Every parameter's name in the untouched module; of a tied one the first."""
        self._pipeline, self._names, self._standing = pipeline, names, pipeline.standing
        self._feed = Feed(module, place, pipeline.sequence)
        self._held = {layout.name: name for name, layout in layouts.items()}
        self._parameters = HeldParameters(module, layouts)

    def parameter_groups(self) -> list[dict[str, list[nn.Parameter]]]:
        """This rank's parts of the parameters, for an optimizer: what FSDP2 shards apart from what it does not, and by
        whom, since torch's fused and foreach optimizers take no mixture. They are in the recipe's `master`, if any.
        """
        kinds: dict[DeviceMesh | None, list[nn.Parameter]] = {}
        for parameter in self.module.parameters():
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            kinds.setdefault(mesh, []).append(parameter)
        return [{"params": parameters} for parameters in kinds.values()]

    def forward_backward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """One step's loss and gradients.

        `batch` is the whole global batch, the same on every rank: `input_ids` [global batch, length] (or what else
        the module takes first: `pixel_values`, `input_features`) and `labels`: tokens [global batch, length] by the
        recipe's `loss.kind`, of a classification [global batch]; -100 where none counts. And what else the module's
        forward takes with a row for each sample (`attention_mask`), where all layers divide the samples alike: the
        model makes of it what it passes to every layer. `decoder_input_ids` that are not given are made of the labels,
        as transformers does. Returns the mean loss over all that counts, a float64 number, the same on every rank.
        Gradients are then ready for `clip_grad_norm_` and the optimizer. Raises PlanError for a batch that does not
        fit.
        """
        prepared = self._feed.prepare(batch)
        before = set_aside(self._parameters)
        loss = self._pipeline.run(prepared)
        with self._standing.at("summing gradients over replicas"):
            sum_replicas(self._parameters, self.plan.execution.bucket_mib)
            sum_tied(self._parameters)
        add_back(before)
        self._pipeline.counter.step += 1
        return self._told(loss).cpu()

    def evaluate(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch as `forward_backward` gives it, without gradients and without dropout."""
        prepared = self._feed.prepare(batch)
        views = [self.module, *(stage.module for stage in self._pipeline.stages.values())]
        before = [view.training for view in views]
        try:
            for view in views:
                view.eval()
            loss = self._pipeline.evaluate(prepared)
        finally:
            for view, trains in zip(views, before, strict=True):
                view.train(trains)
        return self._told(loss).cpu()

    @property
    def step(self) -> int:
        """Steps that were taken: what dropout is drawn from, besides the seed. A run that goes on sets it."""
        return self._pipeline.counter.step

    @step.setter
    def step(self, step: int) -> None:
        self._pipeline.counter.step = step

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Every parameter's whole shape, by its name in the untouched module; of a tied one the first."""
        return self._names.shapes

    def gradient_norm(self) -> Tensor:
        """The 2-norm of the gradients over all ranks, each number counted once."""
        with self._standing.at("measuring the gradients' norm"):
            norm = global_norm(self._parameters)
        self._standing.between_steps()
        return norm

    def _told(self, loss: Tensor) -> Tensor:
        """The loss of all samples, on every rank: summed where the last stage is, then told to the other groups."""
        last = self.place.placed[-1]
        peers = self.place.peers(last, "gradient")
        with self._standing.at("telling the loss"):
            if peers is not None:
                peers.all_reduce(loss)
            if len(self.place.groups) > 1:
                teller = self.place.groups[last.group].devices[0]
                dist.all_reduce(loss if self.place.processes.rank == teller else loss.zero_())
        self._standing.between_steps()
        return loss

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients down to a global norm of `max_norm`. Returns the norm before, over all ranks."""
        norm = self.gradient_norm()
        clip_by_norm(self._parameters, norm, max_norm)
        return norm

    def full_parameter(self, name: str) -> Tensor:
        """A whole parameter, by its name in the untouched module; a tied one by any of its names. Every rank must ask,
        and gets it.

        Raises PlanError where no parameter has the name.
        """
        return self._whole(name, lambda parameter: parameter)

    def full_gradient(self, name: str) -> Tensor:
        """A whole gradient, zeros where none came; names as for `full_parameter`. Every rank must ask."""
        return self._whole(name, lambda each: each.grad if each.grad is not None else torch.zeros_like(each))

    def _whole(self, name: str, part: Callable[[nn.Parameter], Tensor]) -> Tensor:
        own = self._names.find(name)
        held = self._held.get(own)
        if held is not None:
            whole = self.layouts[held].whole(part(self.module.get_parameter(held)))
        else:
            like = next(self.module.parameters())
            whole = torch.empty(self._names.shapes[own], dtype=like.dtype, device=like.device)
        if len(self.place.groups) > 1:
            owner = next(each for each in self.place.placed if each.layer == self._names.layers[own][0])
            dist.broadcast(whole, self.place.groups[owner.group].devices[0])
        return whole
