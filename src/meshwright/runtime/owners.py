"""Every parameter has exactly one owner: the layer whose modules hold it; and starts alike on every rank."""

import torch
import torch.distributed as dist
from torch import nn

from meshwright.errors import PlanError, did_you_mean
from meshwright.model.spec import ModelSpec


def parameter_owners(module: nn.Module, spec: ModelSpec) -> dict[str, str]:
    """Parameter name → layer. Raises PlanError where the module is not the model of the spec: a module that is
    missing, a parameter that no layer covers, another number of parameters.
    """
    modules = dict(module.named_modules())
    named = (path for layer in spec.layers for path in layer.modules)
    missing = next((path for path in named if path not in modules), None)
    if missing is not None:
        raise PlanError(
            f"the module has no '{missing}', which model '{spec.name}' names; {did_you_mean(missing, modules)}"
        )
    owners = {}
    for name, _ in module.named_parameters():
        owner = spec.layer_of(name)
        if owner is None:
            raise PlanError(f"parameter '{name}' belongs to no layer of model '{spec.name}'")
        owners[name] = owner
    held = sum(parameter.numel() for parameter in module.parameters())
    if held != spec.parameters:
        raise PlanError(f"the module has {held:,} parameters, but model '{spec.name}' has {spec.parameters:,}")
    return owners


DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""The recipe's words for torch's dtypes."""


_PIECE = 2**20  # numbers at a time, so that the check needs little memory
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def check_dtypes(module: nn.Module, resting: torch.dtype) -> None:
    """Raises PlanError where a parameter has another dtype than the one that the recipe keeps parameters in, or no
    values where others have some.
    """
    named = dict(module.named_parameters())
    bare = [name for name, parameter in named.items() if parameter.is_meta]
    if 0 < len(bare) < len(named):
        raise PlanError(
            f"parameter '{bare[0]}' has no values (it is on meta), and others have: build the module on one device"
        )
    for name, parameter in named.items():
        if parameter.dtype != resting:
            raise PlanError(f"parameter '{name}' is {parameter.dtype}, and the recipe keeps {resting}: convert one")


def check_values(module: nn.Module, seed: int, device: torch.device) -> None:
    """Raises PlanError, on every rank, where parameters have other values on other ranks. Those on meta start from the
    seed.
    """
    named = list(module.named_parameters())
    start = torch.tensor(seed, device=device)
    sums = torch.stack([start if each.is_meta else _checksum(each.detach()) for _, each in named])
    least, most = sums.clone(), sums.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    unlike = next((name for (name, _), same in zip(named, least == most, strict=True) if not same), None)
    if unlike is not None:
        raise PlanError(
            f"parameter '{unlike}' has other values on other ranks: build the module from one seed, or load one "
            "checkpoint, on every rank"
        )


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """A whole number of a tensor's bits and their places; sums of whole numbers do not depend on their order."""
    bits = values.contiguous().flatten().view(_BITS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for first in range(0, len(bits), _PIECE):
        piece = bits[first : first + _PIECE].long()
        places = torch.arange(first, first + len(piece), device=values.device)
        total += (piece * (2 * places + 1)).sum()
    return total
