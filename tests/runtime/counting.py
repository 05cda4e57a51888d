"""Counting what really goes over the wire: every collective of torch.distributed, as the dispatcher sees it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

KINDS = {
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "exchange",  # of equal pieces: all_to_all
    "send": "p2p",
    "recv_": "",  # counted where it is sent
}
"""torch's operators → our names. Bytes are those of the larger side, of an exchange those received: `cost.volumes`'
way.
"""

Counts = Counter[tuple[str, int]]
"""(kind, bytes) → times."""


def assert_moved(found: Counts, wanted: Counts, summed: int, who: str) -> int:
    """Fails unless these are the collectives that were wanted, and all-reduces of `summed` bytes in all besides: of
    gradients, which share buckets. Returns the number of buckets.
    """
    buckets = found - wanted
    assert not wanted - found, f"{who}: only predicted {wanted - found}"
    assert {kind for kind, _ in buckets} <= {"all_reduce"}, f"{who}: only moved {buckets}"
    moved = sum(size * times for (_, size), times in buckets.items())
    assert moved == summed, f"{who}: summed {moved} bytes of gradients, where {summed} were predicted: {buckets}"
    return buckets.total()


class CountCollectives(TorchDispatchMode):
    """Notes each collective's kind and bytes while active."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counts = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note c10d's own operators; an unknown one is an error, not a gap."""
        if func.namespace == "c10d":
            name = func._overloadpacket.__name__
            sizes = [sum(tensor.nbytes for tensor in _tensors(argument)) for argument in args[:2]]
            kind = "all_to_all" if name == "alltoall_base_" and not (args[3] or args[4]) else KINDS[name]
            if kind:
                self.counts[kind, sizes[0] if name == "alltoall_base_" else max(sizes)] += 1
        return func(*args, **(kwargs or {}))


Messages = Counter[tuple[str, int]]
"""('send' or 'recv_', rank of the other) → bytes."""


class CountMessages(CountCollectives):
    """Notes messages between two ranks of the default group apart, by their peers: those of a pipeline, where the plan
    has stages.
    """

    def __init__(self, *, stages: bool) -> None:
        super().__init__()
        self.messages: Messages = Counter()
        self._stages = stages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a message, or leave the rest, a ring's messages too, to what counts collectives."""
        name = func._overloadpacket.__name__ if func.namespace == "c10d" else ""
        if self._stages and name in ("send", "recv_") and _of_all(args[1]):
            self.messages[name, args[2]] += sum(tensor.nbytes for tensor in _tensors(args[0]))
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _of_all(group: Any) -> bool:
    return dist.ProcessGroup.unbox(group).size() == dist.get_world_size()


def _tensors(argument: Any) -> list[Tensor]:
    return [item for item in tree_flatten(argument)[0] if isinstance(item, Tensor)]


def noted_peak(step: Callable[[], object]) -> int:
    """The most bytes that the allocator holds during a step beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    notes = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    now = peak = 0
    for event in notes:
        now += event.nbytes()
        peak = max(peak, now)
    return peak
