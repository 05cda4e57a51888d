"""Small runs for proofs: a model of each kind, and plans for four processes that are unlike each other."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import meshwright as mw
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from meshwright.recipe.run import Run
from meshwright.runtime.precision import kept
from meshwright.train.build import build_module
from meshwright.train.checkpoint import read_whole
from meshwright.train.checkpoints import Checkpoints
from meshwright.train.data import open_data
from meshwright.train.job import Job
from meshwright.train.learning_rate import share_of_peak

PROCESSES = 4
CONFIGS: Mapping[str, dict[str, Any]] = {
    # Fewer KV heads than tensor ranks, and a vocabulary that four do not divide: copied and filled-up slices.
    "llama": {
        "model_type": "llama",
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": False,
    },
    # A fused matrix of queries, keys and values; one matrix for the embedding and the head; dropout.
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 260,
        "n_embd": 32,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 32,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": 8,
        "patch_size": 2,
        "num_channels": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_labels": 10,
    },
}
_TASKS: Mapping[str, dict[str, Any]] = {
    "vit": {"recipe": {"loss": {"kind": "classification"}}, "data": {"source": "digits"}},
}
"""What a run of a model has in place of a language model's."""
SHAPES: Mapping[str, dict[str, Any]] = {
    "replicas": {"micro_batches": 1},
    "zero1": {"zero": 1, "micro_batches": 2},
    "zero2": {"zero": 2, "micro_batches": 1},
    "zero3": {"zero": 3, "micro_batches": 1},
    "tensor": {"tp": 4, "micro_batches": 1},
    "sequence in tensor": {"tp": 2, "sp": True, "zero": 3, "micro_batches": 1},
    "ring": {"cp": 2, "zero": 1, "micro_batches": 1},
    "ulysses": {"ulysses": 2, "zero": 3, "micro_batches": 1},
    "pipeline": {"pp": 4, "micro_batches": 4},
    "halves": {"tp": 2, "zero": 2, "micro_batches": 2},
    "interleaved": {"pp": 2, "virtual": 2, "micro_batches": 4, "zero": 1},
}
"""Uniform plans."""
MIXED: Mapping[str, dict[str, str]] = {
    "embed": {"pair": "tp", "one": "tp"},
    "decoder.0-1": {"pair": "tp", "one": "tp"},
    "decoder.2-3": {"pair": "dp/zero3", "one": "tp"},
    "head": {"pair": "tp", "one": "tp"},
}
"""Span → roles: layers that are unlike each other in one plan."""


def run_of(folder: Path, *, model: str = "llama", **fields: Any) -> Run:
    """A run in a folder, in float64, on the source of the standard library."""
    folder.mkdir(parents=True, exist_ok=True)
    task = _TASKS.get(model, {})
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIGS[model]))
    optimizer = {"learning_rate": 0.01, "state": "fp64"} | fields.pop("optimizer", {})
    recipe = {
        "global_batch": 8,
        "sequence": 32,
        "precision": {"compute": "fp64", "reduce": "fp64", "master": None},
        "optimizer": optimizer,
        "seed": 5,
    }
    data = {
        "meshwright_run": 1,
        "model": str(config),
        "cluster": f"cpu:{PROCESSES}",
        "recipe": recipe | task.get("recipe", {}) | fields.pop("recipe", {}),
        "data": task.get("data", {"limit": 20}),
        "steps": 6,
        "logging": {"every": 1, "tensorboard": False},
        "folder": str(folder / "run"),
    }
    return Run.from_data(data | fields)


def job_of(run: Run, shape: str = "replicas", processes: int = PROCESSES) -> Job:
    """The run under one of the plans above, or under the mixed one of four processes."""
    model, cluster = mw.model(run.model), mw.cluster(f"cpu:{processes}")
    uniform = SHAPES.get(shape)
    plan = mw.uniform_plan(model, cluster, run.recipe, **uniform) if uniform is not None else _mixed(run, model.name)
    return Job(run, Inputs(plan, model, cluster, run.recipe))


def _mixed(run: Run, name: str) -> Plan:
    return Plan.from_data(
        {
            "meshwright_plan": 1,
            "model": {"name": name},
            "cluster": {"name": f"cpu:{PROCESSES}"},
            "recipe": {"global_batch": run.recipe.global_batch, "sequence": run.recipe.sequence},
            "micro_batches": 2,
            "schedule": "1f1b",
            "groups": {"all": {"devices": "0-3", "mesh": {"pair": 2, "one": 2}}},
            "stages": [{"on": "all", "layers": [{"span": span, "roles": roles} for span, roles in MIXED.items()]}],
        }
    )


def alone(run: Run, optimizer: Any, *, backwards: bool = False) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the last parameters of one process that knows nothing of plans: torch's own loop, loss, clipping.
    `optimizer` makes torch's optimizer of a module; `backwards` takes a batch's samples in the opposite order.
    """
    start = build_module(run, device="cpu")
    values = initial_values(run)
    for name, parameter in start.named_parameters():
        parameter.data.copy_(values[name])
    data, stepper = open_data(run.data, run.recipe, mw.model(run.model)), optimizer(start)
    losses = []
    for step in range(run.last_step):
        for group in stepper.param_groups:
            group["lr"] = run.recipe.optimizer.learning_rate * share_of_peak(run.schedule, step, run.last_step)
        batch = data.batch(step)
        losses.append(_step(start, {name: each.flip(0) for name, each in batch.items()} if backwards else batch, run))
        stepper.step()
        stepper.zero_grad()
    return losses, {name: each.detach() for name, each in start.named_parameters()}


def _step(module: nn.Module, batch: dict[str, torch.Tensor], run: Run) -> float:
    with kept(torch.float64):
        if run.recipe.loss.kind == "classification":
            loss = functional.cross_entropy(module(pixel_values=batch["pixel_values"]).logits, batch["labels"])
        else:
            logits = module(input_ids=batch["input_ids"], use_cache=False).logits
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        loss.backward()
    if run.recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(module.parameters(), run.recipe.clip_norm)
    return float(loss.detach())


def saved(place: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, parameters and optimizer states."""
    return {**read_whole(place, "parameters"), **read_whole(place, "optimizer")}


def last_saved(folder: Path) -> dict[str, torch.Tensor]:
    """Those of the last checkpoint of a run's folder."""
    latest = Checkpoints(folder).latest()
    assert latest is not None
    return saved(latest)


def initial_values(run: Run) -> dict[str, torch.Tensor]:
    """What every rank draws its part of: the module's own initialisation from the recipe's seed."""
    from meshwright.runtime.initial import InitialValues

    module = build_module(run)
    values = InitialValues(module, run.recipe.seed)
    return {name: values.make(name, torch.device("cpu")) for name, _ in module.named_parameters()}
