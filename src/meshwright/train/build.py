"""The module of a run: transformers' own model for a configuration, on meta, or what a function builds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from meshwright.errors import MeshwrightError
from meshwright.model.resolve import configuration
from meshwright.recipe.run import Run
from meshwright.runtime.precision import resting_dtype
from meshwright.trace.target import is_target, load

_HEADS = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "classification": "AutoModelForSequenceClassification",
}
"""The loss of a recipe → transformers' class for a configuration that names no architecture."""
_ATTENTION = {"hf-eager": "eager"}


def build_module(run: Run, *, kernels: str = "hf-sdpa", device: str = "meta") -> nn.Module:
    """The whole model in the recipe's dtype, in training mode. A configuration's is on `device`: on meta it takes no
    memory, and `parallelize` gives each rank its part, from the recipe's seed. A function's is where it builds it, from
    the same seed.

    Raises MeshwrightError where the model can be described but not built.
    """
    dtype = resting_dtype(run.recipe.precision)
    if is_target(run.model):
        torch.manual_seed(run.recipe.seed)
        return _called(run.model).to(dtype).train()
    config = configuration(run.model)
    if config is None:
        raise MeshwrightError(f"{run.model} describes a model, and does not say how to build it: name a config.json")
    with torch.device(device):
        attention = _ATTENTION.get(kernels, "sdpa")
        return from_configuration(config, run.recipe.loss.kind, dtype, attention).train()


def _called(target: str) -> nn.Module:
    made = load(target)()
    if not isinstance(made, nn.Module):
        raise MeshwrightError(f"{target} gives {type(made).__name__}, and a run wants a torch module")
    return made


def hub_class(config: Mapping[str, Any], kind: str) -> Any:
    """transformers' class for a configuration: the first architecture that it names and transformers has, or the one
    for a kind of loss.
    """
    import transformers

    for name in config.get("architectures") or []:
        known = getattr(transformers, str(name), None)
        if isinstance(known, type) and issubclass(known, transformers.PreTrainedModel):
            return known
    return getattr(transformers, _HEADS[kind])


def hub_configuration(config: Mapping[str, Any]) -> Any:
    """transformers' own object of a configuration."""
    import transformers

    other = ("model_type", "torch_dtype", "dtype")
    known = {name: value for name, value in config.items() if name not in other}
    return transformers.AutoConfig.for_model(config["model_type"], **known)


def from_configuration(config: Mapping[str, Any], kind: str, dtype: torch.dtype, attention: str = "sdpa") -> nn.Module:
    """transformers' module for a configuration, initialised anew, on the device at hand; `kind` as for `hub_class`."""
    found = hub_class(config, kind)
    make = found._from_config if hasattr(found, "_from_config") else found.from_config
    made = make(hub_configuration(config), dtype=dtype, attn_implementation=attention)
    assert isinstance(made, nn.Module)
    return made
