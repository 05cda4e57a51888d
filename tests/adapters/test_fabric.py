"""`MeshStrategy` gives what Fabric gives in one process, and says what it cannot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

from meshwright.adapters import fabric as adapter
from meshwright.adapters.fabric import MeshStrategy
from meshwright.errors import MeshwrightError
from meshwright.runtime.precision import kept
from meshwright.train.launch import WorkerPool
from tests.adapters.scripts import BATCH, CLIP, PIPELINE, RATE, SHARDED, Texts, as_started_by_torchrun, module
from tests.parity.harness import Case, plan_of, recipe_of

Found = dict[str, Any]
HALF = 1
"""Epochs before a checkpoint; as many come after it."""


class Script:
    """What a user of Fabric writes, the strategy apart. Two batches make a step, the last one of an epoch its own."""

    def __init__(self, fabric: Fabric, case: Case) -> None:
        self.fabric = fabric
        whole = module(case)
        plain = torch.optim.AdamW(
            [
                {"params": [each for each in whole.parameters() if each.dim() > 1], "weight_decay": 0.1},
                {"params": [each for each in whole.parameters() if each.dim() == 1], "weight_decay": 0.0},
            ],
            lr=RATE,
        )
        self.model, self.optimizer = fabric.setup(whole, plain)
        self.schedule = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
        self.loader = fabric.setup_dataloaders(DataLoader(Texts(), batch_size=BATCH))
        self.losses: list[float] = []
        self.norms: list[float] = []

    def epoch(self) -> None:
        for number, batch in enumerate(self.loader):
            loss = self.model(**batch).loss
            self.fabric.backward(loss / 2)
            self.losses.append(float(loss.detach()))
            if number % 2 or number + 1 == len(self.loader):
                self.norms.append(float(self.fabric.clip_gradients(self.model, self.optimizer, max_norm=CLIP)))
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.schedule.step()

    def judged(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = float(self.model(**next(iter(self.loader))).loss)
        self.model.train()
        return loss

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "epochs": HALF}

    def found(self) -> Found:
        weights = self.fabric.strategy.get_module_state_dict(self.model)
        return {
            "losses": self.losses,
            "norms": self.norms,
            "judged": [self.judged()],
            "weights": {name: each.detach().clone() for name, each in weights.items()},
        }


def under(case: Case) -> Fabric:
    strategy = MeshStrategy(plan_of(case), recipe=recipe_of(case))
    fabric = Fabric(accelerator="cpu", devices=case.world_size, strategy=strategy)
    fabric.launch()
    return fabric


def _planned(case: Case, fault: Callable[[], None] | None = None) -> Found:
    with as_started_by_torchrun():
        before = adapter._Loss.backward
        try:
            if fault is not None:
                fault()
            script = Script(under(case), case)
            for _ in range(2 * HALF):
                script.epoch()
            return script.found()
        finally:
            adapter._Loss.backward = before


def _resumed(first: Case, then: Case, folder: Path) -> Found:
    with as_started_by_torchrun():
        script = Script(under(first), first)
        for _ in range(HALF):
            script.epoch()
        script.fabric.save(folder / "kept", script.state)
        script = Script(under(then), then)
        state = script.state | {"epochs": 0}
        assert script.fabric.load(folder / "kept", state) == {}
        assert state["epochs"] == HALF
        for _ in range(HALF):
            script.epoch()
        return script.found()


@pytest.fixture(scope="module")
def reference() -> Found:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    script = Script(fabric, SHARDED)
    with kept(torch.float64):  # where transformers computes a few things in float32, as under a plan
        for _ in range(2 * HALF):
            script.epoch()
        return script.found()


def apart(one: Found, other: Found) -> float:
    """The largest difference of the last losses and norms, and of weights, which rank 0 alone has."""
    pairs = [
        (a, b)
        for name in ("losses", "norms", "judged")
        for a, b in zip(one[name][-len(other[name]) :], other[name], strict=True)
    ]
    own = other["weights"]
    assert not own or {name for name in one["weights"] if "inv_freq" not in name} == own.keys()
    weights = [float((each - one["weights"][name]).abs().max()) for name, each in own.items()]
    return max([abs(a - b) for a, b in pairs] + weights)


@pytest.mark.parametrize("case", [PIPELINE, SHARDED], ids=["pipeline", "sharded"])
def test_fabric_under_a_plan_is_fabric_in_one_process(pool: WorkerPool, reference: Found, case: Case) -> None:
    found = pool.run(_planned, case)
    assert found[0]["weights"]
    assert max(apart(reference, each) for each in found) < 1e-9


def _forgets_the_factor() -> None:
    """The gradients of a loss come as they are, whatever it was multiplied with."""
    own = adapter._Loss.backward
    adapter._Loss.backward = staticmethod(lambda ctx, *_: own(ctx, torch.ones(())))  # type: ignore[method-assign]


def test_the_proof_notices_gradients_of_another_scale(pool: WorkerPool, reference: Found) -> None:
    assert min(apart(reference, each) for each in pool.run(_planned, PIPELINE, _forgets_the_factor)) > 1e-6


def test_a_checkpoint_goes_on_under_another_plan(pool: WorkerPool, reference: Found, tmp_path: Path) -> None:
    assert max(apart(reference, each) for each in pool.run(_resumed, SHARDED, PIPELINE, tmp_path)) < 1e-9


def _said(wrong: Callable[[Script], Any]) -> str:
    with as_started_by_torchrun():
        try:
            wrong(Script(under(SHARDED), SHARDED))
        except (MeshwrightError, RuntimeError) as error:
            return str(error)
    return "accepted"


def _a_batch(script: Script) -> dict[str, torch.Tensor]:
    return next(iter(script.loader))


def _own_loss(script: Script) -> None:
    nn.functional.cross_entropy(script.model(**_a_batch(script)).logits.flatten(0, 1), _a_batch(script)["labels"])


def _no_labels(script: Script) -> None:
    script.model(input_ids=_a_batch(script)["input_ids"])


def _twice(script: Script) -> None:
    loss = script.model(_a_batch(script)).loss
    script.fabric.backward(loss, retain_graph=True)
    script.fabric.backward(loss)


def _second_model(script: Script) -> None:
    script.fabric.setup(nn.Linear(2, 2))


def _old_parameters(script: Script) -> None:
    script.fabric.setup_optimizers(torch.optim.SGD(nn.Linear(2, 2).parameters()))


def _muon(script: Script) -> None:
    script.fabric.setup_optimizers(torch.optim.Adafactor(script.model.parameters()))


def _another_norm(script: Script) -> None:
    script.fabric.clip_gradients(script.model, script.optimizer, max_norm=1.0, norm_type=1.0)


def _no_checkpoint(script: Script) -> None:
    script.fabric.load("/nowhere", script.state)


def _mixed_precision(_: Script) -> None:
    strategy = MeshStrategy(plan_of(SHARDED), recipe=recipe_of(SHARDED))
    fabric = Fabric(accelerator="cpu", devices=4, strategy=strategy, precision="bf16-mixed")
    fabric.launch()
    fabric.setup(module(SHARDED))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (_mixed_precision, "precision 'bf16-mixed' beside a plan: the recipe says it"),
        (_own_loss, "a model under a plan puts out its loss alone"),
        (_no_labels, "the batch has no 'labels'"),
        (_twice, "backward was called twice on one loss"),
        (_second_model, "a plan is for one model"),
        (_old_parameters, "the optimizer holds parameters of the untouched model"),
        (_muon, "the optimizer Adafactor may look at whole tensors"),
        (_another_norm, "norm_type is 1.0"),
        (_no_checkpoint, "/nowhere was not saved under a plan"),
    ],
)
def test_what_a_plan_cannot_give_is_said(pool: WorkerPool, wrong: Callable[[Script], Any], said: str) -> None:
    assert all(message.startswith(said) for message in pool.run(_said, wrong))
