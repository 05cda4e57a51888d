"""A user's script, in one process and under a plan: the same model, data and settings, in float64."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from tests.parity.harness import Case, build

SAMPLES, BATCH, LENGTH = 20, 8, 12
"""Two batches and a half an epoch."""
RATE, CLIP = 1e-2, 0.5

PIPELINE = Case(
    {},
    {},
    groups={"a": ("0-1", {"x": 2}), "b": ("2-3", {"x": 2})},
    stages=(
        ("a", {"embed": {"x": "tp"}, "decoder.0-1": {"x": "tp"}}),
        ("b", {"decoder.2-3": {"x": "dp/zero2"}, "head": {"x": "dp/zero3"}}),
    ),
)
SHARDED = Case(
    {
        "embed": {"node": "dp/zero3", "gpu": "tp"},
        "decoder.0-3": {"node": "dp/zero3", "gpu": "tp+sp"},
        "head": {"node": "dp/zero1", "gpu": "tp+sp"},
    },
    {"node": 2, "gpu": 2},
)


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Random tokens; how many count differs from sample to sample."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 64, (SAMPLES, LENGTH), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = self.tokens[number]
        return {"input_ids": ids, "labels": ids.masked_fill(torch.arange(LENGTH) > 4 + number % 7, -100)}


def module(case: Case) -> nn.Module:
    """Llama with four layers."""
    return build(case)


@contextmanager
def as_started_by_torchrun() -> Iterator[None]:
    """The environment that torchrun gives a process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": 0}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "none"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update({name: str(value) for name, value in given.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def weights_of(folder: Path) -> dict[str, Any]:
    """Whole weights that a script saved, as transformers loads them."""
    from transformers import LlamaForCausalLM

    loaded = LlamaForCausalLM.from_pretrained(folder)
    return {name: each.detach() for name, each in loaded.named_parameters()}
