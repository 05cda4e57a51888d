"""Gradients of parameters that a state shards over `copy` axes too: equal there, so that they are not summed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.runtime.mesh import Peers
from meshwright.runtime.torch_private import ReduceScatter


class ReduceAndSlice(ReduceScatter):
    """FSDP2's reduce-scatter over a shard group of which some ranks have equal gradients: each reduces its own part
    with those that have others (an FSDPModule takes it by `set_custom_reduce_scatter`).
    """

    def __init__(self, shard: Peers, reduce: Peers | None) -> None:
        self.shard, self.reduce = shard, reduce

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *_: Any, **__: Any) -> None:
        """`input_tensor` has a piece for each of the shard group, in torch's order; `output_tensor` gets our sum."""
        pieces, order = input_tensor.view(self.shard.size, -1), self.shard.order
        if self.reduce is None:
            output_tensor.copy_(pieces[order.index(self.shard.ranks[self.shard.place])])
            return
        ours = [order.index(rank) for rank in self.reduce.ranks]
        output_tensor.copy_(self.reduce.reduce_scatter(pieces[ours].flatten(), 0))
