"""Counting what really goes over the wire: every collective of torch.distributed, as the dispatcher sees it."""

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

KINDS = {
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "exchange",
}
"""torch's operators → our names. Bytes are those of the larger side, of an exchange those received: `cost.volumes`'
way.
"""

Counts = Counter[tuple[str, int]]
"""(kind, bytes) → times."""


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
            self.counts[KINDS[name], sizes[0] if name == "alltoall_base_" else max(sizes)] += 1
        return func(*args, **(kwargs or {}))


def _tensors(argument: Any) -> list[Tensor]:
    return [item for item in tree_flatten(argument)[0] if isinstance(item, Tensor)]
