"""What one rank finds, all must know: a rank that raises, or stops, alone leaves the others waiting for it."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from meshwright.errors import MeshwrightError

Group = dist.ProcessGroup | None
Found = TypeVar("Found")


def on_first(action: Callable[[], Found], group: Group = None) -> Found:
    """What an action of rank 0 gives (something picklable), on every rank; where it raises a MeshwrightError or an
    OSError, all raise a MeshwrightError with its words.
    """
    told: list[Any] = [None, None]
    if dist.get_rank(group) == 0:
        told = _tried(action)
    dist.broadcast_object_list(told, src=0, group=group)
    if told[1] is not None:
        raise MeshwrightError(told[1])
    return told[0]  # type: ignore[no-any-return]


def on_all(action: Callable[[], Found], group: Group = None) -> list[Found]:
    """What an action gives on each rank (something picklable), on every rank. Where it raises a MeshwrightError or an
    OSError on any, all raise a MeshwrightError with the words of the lowest rank that did.
    """
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, _tried(action), group=group)
    faults = [fault for _, fault in every]
    first = next((rank for rank, fault in enumerate(faults) if fault is not None), None)
    if first is not None:
        alike = all(fault == faults[first] for fault in faults)
        raise MeshwrightError(faults[first] if alike else f"on rank {first}: {faults[first]}")
    return [found for found, _ in every]


def together(action: Callable[[], Found], group: Group = None) -> Found:
    """What an action gives on this rank; all ranks raise where one does, as `on_all` does."""
    found: list[Found] = []
    on_all(lambda: found.append(action()), group)
    return found[0]


def _tried(action: Callable[[], Any]) -> list[Any]:
    try:
        return [action(), None]
    except (MeshwrightError, OSError) as error:
        return [None, str(error)]


class Vote:
    """A yes or no that all ranks come to know, beside their work: one number over a process group of its own."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")
        self._ballot = torch.zeros((), dtype=torch.int32)
        self._work: dist.Work | None = None

    def ask(self, yes: bool) -> None:
        """Say what this rank wants."""
        self._ballot.fill_(int(yes))
        self._work = dist.all_reduce(self._ballot, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def answer(self) -> bool:
        """Whether any rank said yes when asked."""
        assert self._work is not None, "nobody was asked"
        self._work.wait()
        return bool(self._ballot.item())
