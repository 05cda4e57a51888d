"""ParallelModel: a module under a plan, on this rank, for one's own training loop."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from meshwright.errors import PlanError, did_you_mean
from meshwright.plan.spec import Placed
from meshwright.runtime.gradients import add_back, clip_by_norm, global_norm, set_aside, sum_replicas
from meshwright.runtime.loss import IGNORED, count_tokens, next_token_loss
from meshwright.runtime.place import Place
from meshwright.runtime.precision import kept
from meshwright.runtime.randomness import Counter
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
        self,
        module: nn.Module,
        place: Place,
        layouts: Mapping[str, Layout],
        sharded: list[FSDPModule],
        counter: Counter,
    ) -> None:
        self.module, self.place, self.layouts = module, place, layouts
        self.plan = place.inputs.plan
        self.counter = counter
        self._sharded = sharded
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        everything = module.named_parameters(remove_duplicate=False)
        self._owner_of = {name: names[id(parameter)] for name, parameter in everything}

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
        total = torch.zeros((), dtype=torch.float64)
        for number in range(self.plan.micro_batches):
            self._sync(last=number == self.plan.micro_batches - 1)
            total += self._micro_batch(batch, number, tokens)
        sum_replicas(self.module, self.layouts, self.plan.execution.bucket_mib)
        add_back(self.module, before)
        self.counter.step += 1
        peers = self.place.peers(self.place.placed[-1], "batch")
        return peers.all_reduce(total.to(self._device)).cpu() if peers else total

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients down to a global norm of `max_norm`. Returns the norm before, over all ranks."""
        norm = global_norm(self.module, self.layouts)
        clip_by_norm(self.module, norm, max_norm)
        return norm

    def full_parameter(self, name: str) -> Tensor:
        """A whole parameter, by its name in the untouched module; a tied one by any of its names. Every rank must ask.

        Raises PlanError where no parameter has the name.
        """
        return self._layout(name).whole(self.module.get_parameter(name))

    def full_gradient(self, name: str) -> Tensor:
        """A whole gradient, zeros where none came; names as for `full_parameter`. Every rank must ask."""
        layout, parameter = self._layout(name), self.module.get_parameter(name)
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        return layout.whole(gradient)

    def _layout(self, name: str) -> Layout:
        if name not in self._owner_of:
            raise PlanError(f"the module has no parameter '{name}'; {did_you_mean(name, self._owner_of)}")
        return self.layouts[self._owner_of[name]]

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    def _micro_batch(self, batch: Mapping[str, Tensor], number: int, tokens: int) -> Tensor:
        first, last = self.place.placed[0], self.place.placed[-1]
        self.counter.first_sample = number * self.place.micro_batch
        inputs = {name: self._share(tensor, first, number) for name, tensor in batch.items() if name != "labels"}
        with kept(next(self.module.parameters()).dtype):
            output = self.module(**inputs, use_cache=False)
            labels = self._share(batch["labels"], last, number)
            loss = next_token_loss(output.logits, labels, self.place.peers(last, "tensor")) / tokens
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach().to(torch.float64).cpu()

    def _share(self, tensor: Tensor, placed: Placed, number: int) -> Tensor:
        first, count = self.place.held(placed)
        start = number * self.place.micro_batch + first
        return tensor[start : start + count].to(self._device)

    def _sync(self, *, last: bool) -> None:
        for module in self._sharded:
            module.set_requires_gradient_sync(last or self.plan.execution.sync == "each")

    def _check_batch(self, batch: Mapping[str, Tensor]) -> None:
        for name in ("input_ids", "labels"):
            if name not in batch:
                raise PlanError(f"the batch has no '{name}'; it has: {', '.join(sorted(batch)) or 'nothing'}")
        others = sorted(batch.keys() - {"input_ids", "labels"})
        unlike = self.place.unlike_the_first
        if others and unlike:
            raise PlanError(
                f"batch['{others[0]}'] is one input for all layers, but '{unlike}' divides the samples "
                f"otherwise than '{self.place.placed[0].layer}'; pack the samples so that none is needed, or give all "
                "layers the same dp axes"
            )
        wanted = self.plan.recipe.global_batch
        for name, tensor in batch.items():
            if tensor.shape[0] != wanted:
                raise PlanError(f"batch['{name}'] has {tensor.shape[0]} samples; the plan's global batch is {wanted}")
        self._check_tokens("input_ids", batch["input_ids"])
        self._check_tokens("labels", batch["labels"][batch["labels"] != IGNORED])

    def _check_tokens(self, name: str, tokens: Tensor) -> None:
        """A token that no rank holds would be a silent zero under a split vocabulary."""
        least, most = (int(each) for each in tokens.aminmax()) if tokens.numel() else (0, 0)
        rows = self.place.inputs.model.vocabulary
        if rows is not None and not 0 <= least <= most < rows:
            wrong = least if least < 0 else most
            raise PlanError(f"batch['{name}'] has the token {wrong}; the model's vocabulary is 0 to {rows - 1}")
