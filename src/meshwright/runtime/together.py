"""What one rank finds wrong, every rank must hear: a rank that raises alone leaves the others waiting for it."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from meshwright.errors import PlanError

Found = TypeVar("Found")


def on_every_rank(check: Callable[[], Found], device: torch.device) -> Found:
    """What `check` gives on this rank. Raises the same PlanError on all ranks where it raises one on any of them.

    Costs one all-reduce of one number on the default process group, whose tensors lie on `device`.
    """
    found, fault = None, None
    try:
        found = check()
    except PlanError as error:
        fault = str(error)
    told = torch.tensor([fault is not None], dtype=torch.int64, device=device)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    if told.item():
        raise PlanError(_first_of(fault))
    return found  # type: ignore[return-value]  # the check came to its end


def _first_of(fault: str | None) -> str:
    """The fault of the lowest rank that has one, and which rank that is, where not all say the same."""
    faults: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(faults, fault)
    rank, first = next((rank, each) for rank, each in enumerate(faults) if each is not None)
    return first if all(each == first for each in faults) else f"on rank {rank}: {first}"
