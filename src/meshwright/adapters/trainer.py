"""transformers' Trainer under a plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright import api
from meshwright.adapters.batches import WholeBatches, filled, size_of
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
from meshwright.train import checkpoint

try:
    from accelerate.data_loader import prepare_data_loader
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_utils import EvalLoopOutput
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f'{error}: pip install "meshwright[train]"') from None

FOLDER, SCHEDULER = "meshwright", "scheduler.pt"
"""Of a checkpoint's folder: what a run goes on from, and the learning rate's schedule."""
ARGUMENTS: Mapping[str, str] = {
    "fsdp": "the plan says what is sharded: leave it out",
    "deepspeed": "the plan says what is sharded: leave it out",
    "parallelism_config": "the plan says how layers are divided: leave it out",
    "activation_checkpointing": "write `recompute` in the plan",
    "gradient_checkpointing": "write `recompute` in the plan",
    "torch_compile": "layers under a plan are not compiled: leave it out",
    "use_liger_kernel": "it changes layers that the plan divides: leave it out",
    "label_smoothing_factor": "the loss is the recipe's: leave it out",
    "neftune_noise_alpha": "it draws on each rank by itself: leave it out",
    "auto_find_batch_size": "the batch is the plan's: leave it out",
    "fp16": "the precision is the recipe's: leave it out",
    "fp16_full_eval": "the precision is the recipe's: leave it out",
    "bf16_full_eval": "the precision is the recipe's: leave it out",
    "save_on_each_node": "rank 0 alone has the whole weights: save on a disk that all nodes see",
}
"""What TrainingArguments may not ask for beside a plan, with what to do instead."""
OTHERS: Mapping[str, str] = {
    "model_init": "a model goes under a plan once: give `model`",
    "compute_loss_func": "the loss is the recipe's (`loss.kind`), and no rank has all logits",
    "compute_metrics": "no rank has all logits: compute metrics of a saved model",
    "preprocess_logits_for_metrics": "no rank has all logits: compute metrics of a saved model",
    "optimizers": "it would hold the untouched parameters: give `optim`, or `optimizer_cls_and_kwargs`",
}
"""The same of the Trainer's own arguments."""
_SAMPLERS = ("random", "sequential", "group_by_length")


class MeshTrainer(Trainer):  # type: ignore[misc]  # transformers' types are not read (pyproject.toml)
    """A Trainer whose model is under a plan: `MeshTrainer(model, args, train_dataset=…, plan="plan.yaml").train()`.

    Start the script as any of torch's, with as many processes as the plan has. The plan says what a step's batch is
    (micro-batches are its accumulation), what is divided and what is recomputed; the recipe precision, loss, and the
    seed of dropout; TrainingArguments optimizer, schedule, clipping, data, logging, saving. Losses, gradient norms and
    weights are those of one process. `evaluate` takes batches of the plan's size. Checkpoints go on under any other
    plan of the model, and `save_model`, which every rank must call, writes whole weights.

    `recipe` and `cluster` as for `meshwright.parallelize`. Raises PlanError for what a plan cannot be brought together
    with.
    """

    control: Any
    optimizer: Any

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments | None = None,
        *,
        plan: Any,
        recipe: Any = None,
        cluster: Any = None,
        **others: Any,
    ) -> None:
        _check_others(type(self), others)
        _check_arguments(args)
        super().__init__(model, args, **others)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise PlanError(
                "accelerate was started with FSDP or DeepSpeed, and the plan says what is sharded: torchrun"
            )
        self._flos_per_token = 6 * _parameters(model)
        model.train()
        self.parallel = api.parallelize(model, plan, recipe=recipe, cluster=cluster)
        self._batch = self.parallel.plan.recipe.global_batch
        self._check_batch()
        self._check_precision()
        check_buffers(model, len(self.parallel.plan.groups))
        self.model_accepts_loss_kwargs = False  # nobody asks how many tokens a batch has: the runtime counts them
        self._batches = WholeBatches(self.parallel)

    def _check_batch(self) -> None:
        each, times, ranks = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps, _ranks()
        given = (each, times) != (TrainingArguments.per_device_train_batch_size, 1)
        if given and each * times * ranks != self._batch:
            raise PlanError(
                f"per_device_train_batch_size {each} × gradient_accumulation_steps {times} × {ranks} processes are "
                f"{each * times * ranks} samples, and the plan's global batch is {self._batch}: leave both out"
            )
        self.args.gradient_accumulation_steps = 1  # a step is one batch, which the plan's micro-batches divide

    def _check_precision(self) -> None:
        computes = self.parallel.place.inputs.recipe.precision.compute
        if self.args.bf16 and computes != "bf16":
            raise PlanError(
                f"bf16=True, and the recipe computes in {computes}: leave it out, or write it in the recipe"
            )

    # What accelerate does for other models, and the runtime for this one.

    def create_accelerator_and_postprocess(self) -> None:
        """The model stays as it is, and every rank reads all batches."""
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = lambda model, *_, **__: model
        self.accelerator.prepare_data_loader = self._whole_batches

    def _whole_batches(self, loader: Any, *_: Any, **__: Any) -> Any:
        own = self.accelerator
        found = prepare_data_loader(
            loader,
            own.device,
            num_processes=1,
            process_index=0,
            put_on_device=own.device_placement,
            rng_types=list(own.rng_types),
            use_seedable_sampler=own.use_seedable_sampler,
            data_seed=own.dataloader_config.data_seed,
            non_blocking=own.non_blocking,
        )
        own._dataloaders.append(found)
        return found

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if not on_meta(model):
            super()._move_model_to_device(model, device)

    def _get_dataloader(self, dataset: Any, description: str, batch_size: int, *args: Any, **more: Any) -> Any:
        return super()._get_dataloader(dataset, description, self._batch, *args, **more)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Samples of a step."""
        return self._batch

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """This rank's share of 6 × parameters × tokens."""
        main = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        return self._flos_per_token * main.numel() // _ranks() if main is not None else 0

    def _track_num_input_tokens(self, inputs: Mapping[str, Any]) -> None:
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)  # of every rank's batch, and all have the same
        self.state.num_input_tokens_seen = before + (self.state.num_input_tokens_seen - before) // _ranks()

    # A step.

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """The loss of a batch, the same on every rank; its gradients are left with the parameters."""
        batch = self._batches.of(self._prepare_inputs(inputs))
        return self.parallel.forward_backward(batch).to(self.args.device)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As `optim` says, over this rank's parts. Raises PlanError for one that looks at whole tensors."""
        found: torch.optim.Optimizer = super().create_optimizer(model)
        check_optimizer(found)
        return found

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        return self.parallel.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> float:
        return float(self.parallel.gradient_norm() if grad_norm is None else grad_norm)

    # Evaluation.

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The mean loss over the samples."""
        self.callback_handler.eval_dataloader = dataloader
        total, samples = 0.0, 0
        for inputs in dataloader:
            batch = self._prepare_inputs(inputs)
            count = size_of(batch)
            total += count * float(self.parallel.evaluate(filled(batch, self.parallel)))
            samples += count
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        found = {f"{metric_key_prefix}_loss": total / samples} if samples else {}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=found, num_samples=samples)

    def predict(self, *_: Any, **__: Any) -> Any:
        """Raises PlanError: no rank has all logits."""
        raise PlanError(
            "predictions are logits, and no rank has all of them: load the saved model into a plain Trainer"
        )

    # Checkpoints.

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict=whole_state(self.parallel))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        own = [self._torch_optimizer()]
        checkpoint.write(Path(output_dir) / FOLDER, stored(self.parallel, own), facts_of(self.parallel, own))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.parallel.step = int(self._loaded(resume_from_checkpoint)["step"])

    def _load_best_model(self) -> None:
        self._loaded(self.state.best_model_checkpoint)

    def _loaded(self, folder: str) -> dict[str, Any]:
        """The facts of a checkpoint, whose parameters and buffers the model has now."""
        place = Path(folder) / FOLDER
        facts = checked(place, self.parallel)
        checkpoint.read(place, of_the_model(stored(self.parallel)))
        return facts

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        if checkpoint_folder is None:
            return
        place, own = Path(checkpoint_folder) / FOLDER, self._torch_optimizer()
        checked(place, self.parallel, [own])
        checkpoint.read(place, stored(self.parallel, [own]))
        state = torch.load(Path(checkpoint_folder) / SCHEDULER, weights_only=True)
        self.lr_scheduler.load_state_dict(for_groups(state, len(own.param_groups)))
        for group, rate in zip(own.param_groups, self.lr_scheduler.get_last_lr(), strict=True):
            group["lr"] = rate

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        found: torch.optim.Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return found


def for_groups(state: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A schedule's state for so many groups of parameters: under another plan an optimizer may have others.

    >>> for_groups({"last_epoch": 4, "base_lrs": [0.1, 0.1]}, 3)
    {'last_epoch': 4, 'base_lrs': [0.1, 0.1, 0.1]}

    Raises PlanError where they differ.
    """
    found = dict(state)
    for name, each in state.items():
        if isinstance(each, list) and each and len(each) != count:
            if any(one != each[0] for one in each):
                raise PlanError(
                    f"the schedule has {len(each)} groups of parameters with unlike '{name}', and under this plan "
                    f"there are {count}: go on under the plan that it was saved under"
                )
            found[name] = each[:1] * count
    return found


def _check_arguments(args: TrainingArguments | None) -> None:
    for name, instead in ARGUMENTS.items():
        if getattr(args, name, None):
            raise PlanError(f"{name}={getattr(args, name)!r} does not go with a plan: {instead}")
    if getattr(args, "save_only_model", False) and getattr(args, "load_best_model_at_end", False):
        raise PlanError("load_best_model_at_end loads what save_only_model leaves out under a plan: leave that out")
    sampling = getattr(args, "train_sampling_strategy", "random")
    if sampling not in _SAMPLERS:
        raise PlanError(f"train_sampling_strategy='{sampling}' deals samples to ranks itself; take {_SAMPLERS[0]}")


def _check_others(kind: type[MeshTrainer], others: Mapping[str, Any]) -> None:
    for name, instead in OTHERS.items():
        if others.get(name) not in (None, (None, None)):
            raise PlanError(f"{name} does not go with a plan: {instead}")
    if kind.compute_loss is not Trainer.compute_loss:
        raise PlanError(f"{kind.__name__}.compute_loss does not go with a plan: {OTHERS['compute_loss_func']}")


def _parameters(model: nn.Module) -> int:
    """Those that are no embedding's, as the Trainer counts them."""
    count = getattr(model, "num_parameters", None)
    if count is not None:
        return int(count(exclude_embeddings=True))
    return sum(each.numel() for each in model.parameters())


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
