"""How a small model is built and fed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import nn

from meshwright.model.hf_config import from_config
from meshwright.model.spec import ModelSpec

BATCH, LENGTH = 2, 24
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
"""The usual ids lie outside of a small vocabulary."""


def tokens(config: dict[str, Any], length: int = LENGTH) -> dict[str, Any]:
    """Token ids and labels, for a language model."""
    ids = torch.randint(1, config["vocab_size"], (BATCH, length))
    return {"input_ids": ids, "labels": ids}


@dataclass(frozen=True)
class Sample:
    """A small configuration, the class of transformers that it belongs to, and a batch for it."""

    name: str
    config: dict[str, Any]
    """As a `config.json` has it, with its `model_type`."""
    auto: str = "AutoModelForCausalLM"
    lengths: dict[str, int] = field(default_factory=dict)
    """Positions of streams whose length the model does not fix; `tokens` are LENGTH."""
    batch: Callable[[dict[str, Any]], dict[str, Any]] = tokens
    fake: bool = True
    """False where the model looks at numbers on its way, so that fake tensors do not do."""

    @cached_property
    def spec(self) -> ModelSpec:
        """What our reader makes of the configuration."""
        return from_config(self.config, self.name)

    def length(self, stream: str) -> int:
        """Positions of a stream in the batch."""
        known = self.spec.streams[stream].length
        return known or self.lengths.get(stream, LENGTH)

    def build(self, attention: str = "eager", experts: str | None = None) -> nn.Module:
        """The model as transformers builds it, on the device or under the mode that is set. `experts` is how routed
        experts compute, if not as transformers sees fit: `batched_mm` alone goes through fake tensors.
        """
        fields = {name: value for name, value in self.config.items() if name != "model_type"}
        settings = transformers.AutoConfig.for_model(self.config["model_type"], **fields)
        model: nn.Module = getattr(transformers, self.auto).from_config(
            settings, attn_implementation=attention, experts_implementation=experts
        )
        return as_published(model, self.config)


def as_published(model: nn.Module, config: dict[str, Any]) -> nn.Module:
    """The model with a head of its own where it is a T5 that is not tied: transformers 5 builds it tied whatever the
    configuration says, and unties it on loading a checkpoint that has both matrices, as those of T5 1.1 and Flan-T5 do.
    """
    if config["model_type"] == "t5" and config.get("tie_word_embeddings") is False:
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model
