"""Batches of a script's own loader, as the runtime wants them: whole, alike on every rank, as large as the plan's."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import PlanError
from meshwright.runtime.loss import IGNORED
from meshwright.runtime.parallel_model import ParallelModel


def size_of(batch: Mapping[str, Any]) -> int:
    """Samples of a batch. Raises PlanError where it holds anything but tensors, or has none.

    >>> size_of({"input_ids": torch.zeros(3, 5)})
    3
    """
    for name, each in batch.items():
        if not isinstance(each, Tensor) or each.dim() == 0:
            raise PlanError(f"batch['{name}'] is {type(each).__name__}; the runtime takes tensors with a row a sample")
    if not batch:
        raise PlanError("the batch is empty: the loader has to give 'labels' and what the model takes first")
    return len(next(iter(batch.values())))


class WholeBatches:
    """What a script's loader gives, filled; the first batch is compared over the ranks."""

    def __init__(self, parallel: ParallelModel) -> None:
        self._parallel, self._seen = parallel, False

    def of(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """One of them. Every rank must call it. Raises PlanError as `filled` and `check_alike` do."""
        found = filled(batch, self._parallel)
        if not self._seen:
            check_alike(found)
            self._seen = True
        return found


def filled(batch: Mapping[str, Tensor], parallel: ParallelModel) -> dict[str, Tensor]:
    """A batch with as many samples as the plan's global batch: what the last one of an epoch lacks is filled with
    samples that do not count, so that its loss and gradients are those of the samples that it has.

    Raises PlanError where the model takes statistics over the batch, which would see them.
    """
    wanted, held = parallel.plan.recipe.global_batch, size_of(batch)
    if held >= wanted or "labels" not in batch:
        return dict(batch)
    if parallel.place.inputs.model.batch_statistics:
        raise PlanError(
            f"the batch has {held} samples of {wanted}, and the model takes statistics over it, in which samples that "
            "fill it up would count: drop the last batch of an epoch"
        )
    return filled_up(batch, wanted - held)


def filled_up(batch: Mapping[str, Tensor], missing: int) -> dict[str, Tensor]:
    """A batch with so many samples more, none of which counts.

    >>> filled_up({"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]])}, 1)["labels"].tolist()
    [[1, 2], [-100, -100]]
    """
    more = {name: each[:1].expand(missing, *each.shape[1:]) for name, each in batch.items()}
    more["labels"] = torch.full_like(more["labels"], IGNORED)
    return {name: torch.cat([each, more[name]]) for name, each in batch.items()}


def check_alike(batch: Mapping[str, Tensor]) -> None:
    """Raises PlanError, on every rank, where ranks were given other batches. Every rank must call it."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, _digest(batch))
    unlike = next((rank for rank, found in enumerate(every) if found != every[0]), None)
    if unlike is not None:
        raise PlanError(
            f"rank {unlike} was given another batch than rank 0: the plan divides batches, so give every rank the "
            "whole one (no DistributedSampler, one seed for all)"
        )


def _digest(batch: Mapping[str, Tensor]) -> str:
    found = sha256()
    for name, each in sorted(batch.items()):
        found.update(f"{name} {each.dtype} {tuple(each.shape)}".encode())
        found.update(each.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
