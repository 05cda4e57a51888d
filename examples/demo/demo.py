"""`make demo`: a small Llama described, estimated, trained under a plan on four CPU processes, and held against one
process.

Exits with 1 where the loss does not fall, or is not the one process's.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import meshwright as mw
from meshwright.measure.probe import probe
from meshwright.plan.resolve import read_inputs
from meshwright.plan.spec import Plan
from meshwright.report.blocks import Block, Facts, Lines, Table, table
from meshwright.report.estimate import estimate_blocks
from meshwright.report.model import model_blocks
from meshwright.report.screen import show
from meshwright.train.data import ByteText, standard_library_text
from meshwright.train.launch import WorkerPool, emit, preload
from meshwright.units import show_seconds

HERE = Path(__file__).parent
PROCESSES, STEPS, WARM_UP, SEED = 4, 20, 3, 7
TOLERANCE = 1e-4
"""Of the loss, relative, in float32: over 20 steps of AdamW an order of summation shows in the sixth digit."""


def say(*blocks: Block) -> None:
    """Print blocks as the command line does."""
    show(False, dict, lambda: blocks)


def build() -> nn.Module:
    """transformers' own model, nothing changed, the same on every process."""
    torch.manual_seed(SEED)
    return LlamaForCausalLM(LlamaConfig.from_json_file(HERE / "config.json")).train()


def batches(recipe: Any) -> list[dict[str, torch.Tensor]]:
    """The standard library's source, byte by byte."""
    text = ByteText(standard_library_text(), recipe.sequence, seed=recipe.seed)
    return [text.batch(step, recipe.global_batch) for step in range(STEPS)]


def optimizer_of(parameters: Any, recipe: Any) -> torch.optim.Optimizer:
    """AdamW as the recipe says."""
    settings = recipe.optimizer
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )


def train_under_plan(plan_file: Path) -> list[tuple[float, float]]:
    """(loss, seconds) of each step. Runs on every process: this is all that a training loop needs."""
    recipe, plan = mw.recipe(HERE / "recipe.yaml"), Plan.read(plan_file)
    parallel = mw.parallelize(build(), plan, recipe=recipe)
    optimizer = optimizer_of(parallel.parameter_groups(), recipe)
    found = []
    for step, batch in enumerate(batches(recipe)):
        start = time.perf_counter()
        loss = parallel.forward_backward(batch)
        parallel.clip_grad_norm_(recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        found.append((float(loss), time.perf_counter() - start))
        emit((step, float(loss)))
    return found


def train_alone() -> list[float]:
    """The loss of each step in one process, with plain PyTorch: no plan, no Meshwright."""
    recipe, module = mw.recipe(HERE / "recipe.yaml"), build()
    optimizer = optimizer_of(list(module.parameters()), recipe)
    losses = []
    for batch in batches(recipe):
        logits = module(input_ids=batch["input_ids"], use_cache=False).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def losses_table(many: list[float], one: list[float]) -> Table:
    """Step by step, side by side."""
    rows = [
        (str(step), f"{a:.6f}", f"{b:.6f}", f"{abs(a - b):.1e}")
        for step, (a, b) in enumerate(zip(many, one, strict=True))
    ]
    title = "training on the source of Python's standard library"
    return table(title, "step | >4 processes | >1 process | >apart", rows)


def main() -> int:
    """The demonstration, in the order in which one would work."""
    started = time.perf_counter()
    preload()
    plan_file = HERE / "plan.yaml"
    say(*model_blocks(mw.model(HERE / "config.json"), 128))
    for problem in mw.check(plan_file, scope="runtime"):
        say(Lines("", (str(problem),), "warning"))
    say(*estimate_blocks(read_inputs(plan_file), mw.estimate(plan_file)))
    one = train_alone()
    with WorkerPool(PROCESSES) as pool:
        say(Lines("", ("measuring this machine, then training ...",)))
        machine = probe(pool)
        runs = pool.run(train_under_plan, plan_file, timeout=150.0)
    many = [loss for loss, _ in runs[0]]
    step_time = statistics.median(max(run[step][1] for run in runs) for step in range(WARM_UP, STEPS))
    say(losses_table(many, one))
    public, measured = (mw.estimate(plan_file, **given).step_time_s for given in ({}, {"cluster": machine}))
    apart = max(abs(a - b) / b for a, b in zip(many, one, strict=True))
    say(
        Facts(
            "step time",
            (
                ("predicted from public round figures", show_seconds(public)),
                ("predicted from this machine's figures", show_seconds(measured)),
                ("measured, median", show_seconds(step_time)),
                ("measured / predicted", f"{step_time / public:.2f} and {step_time / measured:.2f}"),
            ),
        ),
        Facts(
            "result",
            (
                ("loss", f"{many[0]:.3f} to {many[-1]:.3f}"),
                ("largest difference from one process", f"{apart:.1e} of the loss"),
                ("the whole took", show_seconds(time.perf_counter() - started)),
            ),
        ),
    )
    if not many[-1] < 0.8 * many[0] or apart > TOLERANCE:
        say(Lines("", ("the loss did not fall, or is not one process's: something is wrong",), "bad"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
