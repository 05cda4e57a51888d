"""Counting what a program moves, as torch's dispatcher sees it: every collective with its process group and bytes."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

KINDS = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "send": "p2p",
}
"""torch's operators → our names. A message is counted where it is sent. Bytes are those of the larger side:
`cost.volumes`' way.
"""
WHENS = ("forward", "backward", "reduce", "update")
HERE = Path(__file__).parent


class Move(NamedTuple):
    """What is equal in equal collectives."""

    purpose: str
    kind: str
    ranks: tuple[int, ...]
    bytes: int
    when: str


class CountMoves(TorchDispatchMode):
    """Notes each collective while active. Its purpose is its process group's description, and when it happens is the
    name of the innermost function of the program that begins with one of `WHENS`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Move] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note c10d's own operators; an unknown one is an error, not a gap."""
        if func.namespace == "c10d" and func._overloadpacket.__name__ != "recv_":
            kind = KINDS[func._overloadpacket.__name__]
            size = max(sum(tensor.nbytes for tensor in _tensors(argument)) for argument in args[:2])
            group = _group(args)
            ranks = tuple(dist.get_process_group_ranks(group))
            self.counts[Move(group.group_desc, kind, ranks, size, _when())] += 1
        return func(*args, **(kwargs or {}))


def _tensors(argument: Any) -> list[Tensor]:
    return [item for item in tree_flatten(argument)[0] if isinstance(item, Tensor)]


def _group(arguments: Any) -> dist.ProcessGroup:
    boxed = next(each for each in arguments if isinstance(each, torch.ScriptObject))
    return dist.ProcessGroup.unbox(boxed)


def _when() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        word = code.co_name.split("_")[0]
        if word in WHENS and Path(code.co_filename).parent == HERE:
            return word
        frame = frame.f_back
    raise LookupError(f"a collective outside of any function that begins with one of {WHENS}")
