"""Every optimizer does under a plan what torch's own does on one process's whole tensors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import meshwright as mw
from meshwright.runtime.parallelize import parallelize
from meshwright.train.build import build_module
from meshwright.train.data import open_data
from meshwright.train.job import Job
from meshwright.train.launch import WorkerPool
from meshwright.train.lion import Lion
from meshwright.train.muon import orthogonalised, scale_of
from meshwright.train.optimizers import Stepper, hidden_matrices
from tests.train.curves import adamw
from tests.train.small import alone, job_of, run_of

EXACT = 1e-9
STEPS = 3
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Both(torch.optim.Optimizer):
    """torch's own Muon for hidden matrices and AdamW for the rest, in float64: its iteration works in bfloat16, where
    another order of summation shows.
    """

    def __init__(self, module: nn.Module, hidden: set[str]) -> None:
        named = dict(module.named_parameters())
        self.matrices = [each for name, each in named.items() if name in hidden]
        self.kept = [torch.zeros_like(each) for each in self.matrices]
        others = [each for name, each in named.items() if name not in hidden]
        self.adamw = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
        super().__init__(self.matrices, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        rate = self.param_groups[0]["lr"]
        self.adamw.param_groups[0]["lr"] = rate
        self.adamw.step()
        for matrix, kept in zip(self.matrices, self.kept, strict=True):
            kept.lerp_(matrix.grad, 0.05)
            update = orthogonalised(matrix.grad.lerp(kept, 0.95))
            matrix.mul_(1 - rate * 0.1).add_(update, alpha=-rate * 0.2 * max(matrix.shape) ** 0.5)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.adamw.zero_grad(set_to_none)


def make_muon(module: nn.Module) -> torch.optim.Optimizer:
    return Both(module, hidden_matrices(mw.model(module.config)))


MAKES: dict[str, Make] = {
    "adamw": adamw,
    "sgd": lambda each: torch.optim.SGD(each.parameters(), momentum=0.9, weight_decay=0.1, foreach=False),
    "lion": lambda each: Lion(each.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.1),
    "adafactor": lambda each: torch.optim.Adafactor(each.parameters(), weight_decay=0.1, foreach=False),
    "muon": make_muon,
}


def trained(jobs: list[Job]) -> list[dict[str, torch.Tensor]]:
    """The parameters of each job after its steps. Runs on every rank."""
    found = []
    for job in jobs:
        parallel = parallelize(build_module(job.run), job.inputs)
        stepper = Stepper(parallel, job.run.recipe.optimizer)
        data = open_data(job.run.data, job.run.recipe, job.inputs.model)
        for step in range(job.run.last_step):
            parallel.forward_backward(data.batch(step))
            parallel.clip_grad_norm_(1.0)
            stepper.step(job.run.recipe.optimizer.learning_rate)
        found.append({name: parallel.full_parameter(name).detach() for name in parallel.names})
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", MAKES)
def test_an_optimizer_under_unlike_plans_is_one_process_s(pool: WorkerPool, tmp_path: Path, name: str) -> None:
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    # Lion takes the sign of what in float64 is rounding where gradients are zero: rows of bytes that never came.
    rate = 0.001
    run = run_of(tmp_path, steps=STEPS, optimizer={"name": name, "learning_rate": rate, **momentum})
    _, wanted = alone(run, MAKES[name])
    shapes = ["sequence in tensor", "zero3"] if name in ("adafactor", "muon") else ["mixed"]
    for shape, found in zip(
        shapes, pool.run(trained, [job_of(run, each) for each in shapes], timeout=200)[0], strict=True
    ):
        assert found.keys() == wanted.keys()
        for parameter, value in wanted.items():
            apart = float((found[parameter] - value).abs().max() / value.abs().max())
            assert apart < EXACT, f"{parameter} under {shape}: {apart:.1e}"


def test_muon_steps_a_matrix_as_torch_s_does() -> None:
    torch.manual_seed(0)
    start, gradient = torch.randn(24, 40), torch.randn(24, 40)
    theirs, ours = nn.Parameter(start.clone()), start.clone()
    theirs.grad = gradient.clone()
    torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw").step()
    kept = torch.zeros_like(gradient).lerp_(gradient, 0.05)
    update = orthogonalised(gradient.lerp(kept, 0.95)).float()
    ours.mul_(1 - 0.01 * 0.1).add_(update, alpha=-0.01 * scale_of(update.shape))
    assert torch.allclose(ours, theirs.detach(), rtol=0, atol=1e-6)


def test_muon_s_matrices_are_those_of_hidden_layers(tmp_path: Path) -> None:
    named = hidden_matrices(mw.model(run_of(tmp_path).model))
    assert "model.layers.2.mlp.down_proj.weight" in named
    assert len(named) == 4 * 7
    assert not named & {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}
