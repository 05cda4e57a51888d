"""`MeshTrainer` gives what one process's Trainer gives, and says what it cannot."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from meshwright.adapters.trainer import MeshTrainer
from meshwright.errors import MeshwrightError
from meshwright.runtime.precision import kept
from meshwright.train.launch import WorkerPool
from tests.adapters.scripts import (
    BATCH,
    CLIP,
    LENGTH,
    PIPELINE,
    RATE,
    SHARDED,
    Texts,
    as_started_by_torchrun,
    module,
    weights_of,
)
from tests.parity.harness import Case, plan_of, recipe_of

STEPS, HALF = 4, 3


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "use_cpu": True,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "warmup_steps": 2,
        "weight_decay": 0.1,
        "max_grad_norm": CLIP,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 7,
    }
    return TrainingArguments(output_dir=str(folder), **settings | more)


class _Losses:
    """A Trainer's mix-in: losses as they come, since its log holds them in float32."""

    def training_step(self, *args: Any, **more: Any) -> torch.Tensor:
        loss = super().training_step(*args, **more)  # type: ignore[misc]
        self.losses = [*getattr(self, "losses", []), float(loss)]
        return loss


class _Plain(_Losses, Trainer):
    pass


class _Planned(_Losses, MeshTrainer):
    pass


def outcome(trainer: Any, folder: Path) -> dict[str, Any]:
    history = trainer.state.log_history
    return {
        "losses": trainer.losses,
        "norms": [each["grad_norm"] for each in history if "grad_norm" in each],
        "rates": [each["learning_rate"] for each in history if "learning_rate" in each],
        "eval": [each["eval_loss"] for each in history if "eval_loss" in each],
        "weights": weights_of(folder),
    }


def one_process(folder: Path) -> dict[str, Any]:
    args = arguments(folder, per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH)
    data = {"train_dataset": Texts(), "eval_dataset": Texts(1)}
    trainer = _Plain(module(SHARDED), args, **data)
    with kept(torch.float64):  # where transformers computes a few things in float32, as under a plan
        trainer.train()
    trainer.save_model()
    return outcome(trainer, folder)


def planned(case: Case, folder: Path, **more: Any) -> Any:
    args = arguments(folder, **more)
    data = {"train_dataset": Texts(), "eval_dataset": Texts(1)}
    return _Planned(module(case), args, **data, plan=plan_of(case), recipe=recipe_of(case))


def _under_a_plan(case: Case, folder: Path, fault: Callable[[Any], None] | None = None) -> dict[str, Any]:
    with as_started_by_torchrun():
        trainer = planned(case, folder)
        if fault is not None:
            fault(trainer)
        trainer.train()
        trainer.save_model()
        torch.distributed.barrier()
        return outcome(trainer, folder)


def _resumed(first: Case, then: Case, folder: Path) -> dict[str, Any]:
    """Stopped after the first checkpoint under one plan, gone on under another."""
    with as_started_by_torchrun():
        planned(first, folder, save_strategy="steps", save_steps=HALF).train()
        trainer = planned(then, folder)
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{HALF}"))
        trainer.save_model()
        torch.distributed.barrier()
        return outcome(trainer, folder)


def apart(one: dict[str, Any], other: dict[str, Any], steps: int = STEPS) -> float:
    """The largest difference, of the last steps' losses and norms, of evaluations, and of weights."""
    pairs = [
        *zip(one["losses"][-steps:], other["losses"][-steps:], strict=True),
        *zip(one["norms"][-steps:], other["norms"][-steps:], strict=True),
        *zip(one["rates"][-steps:], other["rates"][-steps:], strict=True),
        (one["eval"][-1], other["eval"][-1]),
    ]
    weights = [float((each - other["weights"][name]).abs().max()) for name, each in one["weights"].items()]
    assert one["weights"].keys() == other["weights"].keys()
    return max([abs(a - b) for a, b in pairs] + weights)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return one_process(tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("case", [PIPELINE, SHARDED], ids=["pipeline", "sharded"])
def test_a_trainer_under_a_plan_is_the_trainer_of_one_process(
    pool: WorkerPool, reference: dict[str, Any], case: Case, tmp_path: Path
) -> None:
    for found in pool.run(_under_a_plan, case, tmp_path):
        assert apart(reference, found) < 1e-9


def _clips_alone(trainer: Any) -> None:
    """Each rank clips by the norm of what it holds, as a plain Trainer would."""
    trainer._clip_grad_norm = lambda model: nn.utils.clip_grad_norm_(
        [each for each in model.parameters() if type(each) is nn.Parameter], CLIP
    )


def _divides_again(trainer: Any) -> None:
    """Each rank reads batches of its own, of which the loss counts all."""
    trainer.accelerator.prepare_data_loader = type(trainer.accelerator).prepare_data_loader.__get__(trainer.accelerator)


@pytest.mark.parametrize(("fault", "said"), [(_clips_alone, ""), (_divides_again, "was given another batch")])
def test_the_proof_notices_what_a_plain_trainer_would_do(
    pool: WorkerPool, reference: dict[str, Any], fault: Callable[[Any], None], said: str, tmp_path: Path
) -> None:
    if said:
        with pytest.raises(MeshwrightError, match=said):
            pool.run(_under_a_plan, PIPELINE, tmp_path, fault)
    else:
        assert all(apart(reference, found) > 1e-6 for found in pool.run(_under_a_plan, PIPELINE, tmp_path, fault))


def test_a_checkpoint_goes_on_under_another_plan(pool: WorkerPool, reference: dict[str, Any], tmp_path: Path) -> None:
    for found in pool.run(_resumed, PIPELINE, SHARDED, tmp_path):
        assert len(found["losses"]) == STEPS - HALF
        assert apart(reference, found, STEPS - HALF) < 1e-9


def _best(folder: Path) -> float:
    """The evaluation of what is loaded in the end: the second step's weights, since the fourth's do worse."""
    with as_started_by_torchrun():
        best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
        trainer = planned(PIPELINE, folder, save_strategy="steps", save_steps=2, **best)
        trainer.train()
        return float(trainer.evaluate()["eval_loss"])


def test_the_best_model_is_loaded_in_the_end(pool: WorkerPool, reference: dict[str, Any], tmp_path: Path) -> None:
    second, fourth = reference["eval"]
    assert second < fourth
    assert pool.run(_best, tmp_path) == [pytest.approx(second, abs=1e-12)] * 4


class _OwnLoss(MeshTrainer):
    def compute_loss(self, *args: Any, **more: Any) -> Any:
        return super().compute_loss(*args, **more)


def _said(wrong: Callable[[Path], Any], folder: Path) -> str:
    with as_started_by_torchrun():
        try:
            wrong(folder)
        except MeshwrightError as error:
            return str(error)
    return "accepted"


def _asks_for(**more: Any) -> Callable[[Path], Any]:
    return partial(_made, more)


def _made(more: dict[str, Any], folder: Path) -> Any:
    return planned(SHARDED, folder, **more)


def _beside(name: str, value: Any) -> Callable[[Path], Any]:
    return partial(_made_with, name, value)


def _made_with(name: str, value: Any, folder: Path) -> Any:
    return MeshTrainer(module(SHARDED), arguments(folder), plan=plan_of(SHARDED), **{name: value})


def _of_its_own(folder: Path) -> Any:
    return _OwnLoss(module(SHARDED), arguments(folder), plan=plan_of(SHARDED))


def _predicts(folder: Path) -> Any:
    return planned(SHARDED, folder).predict(Texts())


def _resumes_nothing(folder: Path) -> Any:
    return planned(SHARDED, folder).train(resume_from_checkpoint=str(folder))


def _without_labels(folder: Path) -> Any:
    trainer = planned(SHARDED, folder)
    trainer.train_dataset = [{"input_ids": each["input_ids"]} for each in Texts()]
    return trainer.train()


def _for_more_processes(folder: Path) -> Any:
    case = replace(SHARDED, mesh={"node": 4, "gpu": 2})
    args = arguments(folder, eval_strategy="no")
    return MeshTrainer(module(case), args, plan=plan_of(case), recipe=recipe_of(case))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (_asks_for(per_device_train_batch_size=4), "per_device_train_batch_size 4 × gradient_accumulation_steps 1 × 4"),
        (_asks_for(gradient_accumulation_steps=2), "per_device_train_batch_size 8 × gradient_accumulation_steps 2 × 4"),
        (
            _asks_for(save_only_model=True, load_best_model_at_end=True, save_strategy="steps", save_steps=2),
            "load_best_model_at_end loads what save_only_model leaves out",
        ),
        (_asks_for(bf16=True), "bf16=True, and the recipe computes in fp64"),
        (_asks_for(label_smoothing_factor=0.1), "label_smoothing_factor=0.1 does not go with a plan"),
        (_asks_for(gradient_checkpointing=True), "does not go with a plan: write `recompute` in the plan"),
        (
            _asks_for(train_sampling_strategy="batch_rebalance"),
            "train_sampling_strategy='batch_rebalance' deals samples",
        ),
        (_beside("compute_metrics", print), "compute_metrics does not go with a plan: no rank has all logits"),
        (_beside("model_init", print), "model_init does not go with a plan"),
        (_of_its_own, "_OwnLoss.compute_loss does not go with a plan: the loss is the recipe's"),
        (_predicts, "predictions are logits, and no rank has all of them"),
        (_resumes_nothing, "was not saved under a plan: it has no checkpoint.json"),
        (_without_labels, "the batch has no 'labels'"),
        (_for_more_processes, "the plan is for 8 processes, but 4 run"),
    ],
)
def test_what_does_not_go_with_a_plan_is_said_on_every_rank(
    pool: WorkerPool, wrong: Callable[[Path], Any], said: str, tmp_path: Path
) -> None:
    found = pool.run(_said, wrong, tmp_path)
    assert all(said in message for message in found), found[0]


def _steps_with(name: str, folder: Path) -> str:
    with as_started_by_torchrun():
        trainer = planned(SHARDED, folder, optim=name)
        try:
            trainer.create_optimizer()
        except MeshwrightError as error:
            return str(error)
    return type(trainer.optimizer).__name__


@pytest.mark.parametrize(
    ("name", "found"), [("sgd", "SGD"), ("adafactor", "the optimizer Adafactor may look at whole")]
)
def test_optimizers_that_work_number_by_number_are_taken(
    pool: WorkerPool, name: str, found: str, tmp_path: Path
) -> None:
    assert all(told.startswith(found) for told in pool.run(_steps_with, name, tmp_path))


def _made_in_parts(folder: Path) -> tuple[float, int]:
    with as_started_by_torchrun():
        with torch.device("meta"):
            whole = module(PIPELINE)
        args = arguments(folder, eval_strategy="no", max_steps=2, include_num_input_tokens_seen="all")
        trainer = _Planned(whole, args, train_dataset=Texts(), plan=plan_of(PIPELINE), recipe=recipe_of(PIPELINE))
        trainer.train()
        assert not any(each.is_meta for each in whole.parameters())
        return trainer.losses[0], trainer.state.num_input_tokens_seen


def test_a_model_on_meta_is_made_in_parts_and_tokens_are_counted_once(pool: WorkerPool, tmp_path: Path) -> None:
    (loss, tokens), *others = pool.run(_made_in_parts, tmp_path)
    assert 4.0 < loss < 4.4  # of 64 words that it knows nothing of: ln 64 = 4.16
    assert tokens == 2 * BATCH * LENGTH
    assert others == [(loss, tokens)] * 3
