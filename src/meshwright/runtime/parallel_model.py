"""ParallelModel: a module under a plan, on this rank, for one's own training loop."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.errors import PlanError
from meshwright.runtime.gradients import add_back, clip_by_norm, global_norm, set_aside, sum_replicas, sum_tied
from meshwright.runtime.loss import IGNORED, count_tokens
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
        self._pipeline, self._names = pipeline, names
        self._held = {layout.name: name for name, layout in layouts.items()}

    def parameter_groups(self) -> list[dict[str, list[nn.Parameter]]]:
        """This rank's parts of the parameters, for an optimizer: what FSDP2 shards apart from what it does not, since
        torch's fused and foreach optimizers take no mixture.
        """
        kinds: dict[bool, list[nn.Parameter]] = {}
        for parameter in self.module.parameters():
            kinds.setdefault(isinstance(parameter, DTensor), []).append(parameter)
        return [{"params": parameters} for parameters in kinds.values()]

    def forward_backward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """One step's loss and gradients.

        `batch` is the whole global batch, the same on every rank: `input_ids` and `labels` [global batch, length],
        and what else the module's forward takes with a row for each sample (`attention_mask`), where all layers
        divide the samples alike: the model makes of it what it passes to every layer. Returns the mean loss over all
        tokens that count, a float64 number, the same on every rank. Gradients are then ready for `clip_grad_norm_`
        and the optimizer.
        """
        self._check_batch(batch)
        tokens = max(count_tokens(batch["labels"]), 1)
        before = set_aside(self.module, self.layouts)
        loss = self._pipeline.run(batch, tokens)
        sum_replicas(self.module, self.layouts, self.plan.execution.bucket_mib)
        sum_tied(self.module, self.layouts)
        add_back(self.module, before)
        self._pipeline.counter.step += 1
        return self._told(loss).cpu()

    def _told(self, loss: Tensor) -> Tensor:
        """The loss of all samples, on every rank: summed where the last stage is, then told to the other groups."""
        last = self.place.placed[-1]
        peers = self.place.peers(last, "gradient")
        if peers is not None:
            peers.all_reduce(loss)
        if len(self.place.groups) > 1:
            teller = self.place.groups[last.group].devices[0]
            dist.all_reduce(loss if self.place.processes.rank == teller else loss.zero_())
        return loss

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients down to a global norm of `max_norm`. Returns the norm before, over all ranks."""
        norm = global_norm(self.module, self.layouts)
        clip_by_norm(self.module, norm, max_norm)
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

    def _check_batch(self, batch: Mapping[str, Tensor]) -> None:
        for name in ("input_ids", "labels"):
            if name not in batch:
                raise PlanError(f"the batch has no '{name}'; it has: {', '.join(sorted(batch)) or 'nothing'}")
        self._check_others(sorted(batch.keys() - {"input_ids", "labels"}), batch["input_ids"].shape[1])
        wanted = self.plan.recipe.global_batch
        for name, tensor in batch.items():
            if tensor.shape[0] != wanted:
                raise PlanError(f"batch['{name}'] has {tensor.shape[0]} samples; the plan's global batch is {wanted}")
        self._check_tokens("input_ids", batch["input_ids"])
        self._check_tokens("labels", batch["labels"][batch["labels"] != IGNORED])

    def _check_others(self, others: list[str], length: int) -> None:
        """What else the module takes, and its length, which every layer's part must fit."""
        unlike, sequence = self.place.unlike_the_first, self._pipeline.sequence
        unknown = [name for name in others if name != "attention_mask"]
        if sequence is not None and unknown:
            raise PlanError(f"batch['{unknown[0]}'] cannot be divided by positions; leave it out")
        if sequence is not None and length % sequence.unit:
            raise PlanError(f"batch['input_ids'] has {length} positions; the plan wants multiples of {sequence.unit}")
        if others and unlike and sequence is None:
            raise PlanError(
                f"batch['{others[0]}'] is one input for all layers, but '{unlike[0]}' divides the samples "
                f"otherwise than '{unlike[1]}'; pack the samples so that none is needed, or give all "
                "layers the same dp axes"
            )

    def _check_tokens(self, name: str, tokens: Tensor) -> None:
        """A token that no rank holds would be a silent zero under a split vocabulary."""
        least, most = (int(each) for each in tokens.aminmax()) if tokens.numel() else (0, 0)
        rows = self.place.inputs.model.vocabulary
        if rows is not None and not 0 <= least <= most < rows:
            wrong = least if least < 0 else most
            raise PlanError(f"batch['{name}'] has the token {wrong}; the model's vocabulary is 0 to {rows - 1}")
