"""Process groups: one for each set of ranks that a plan uses, made once and shared.

Every rank makes every group, in the plan's order, whether it is a member or not: torch numbers groups by the order of
their making, and a rank that leaves one out hangs at a later collective.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.errors import PlanError
from meshwright.plan.groups import RankLists, axis_groups, process_groups
from meshwright.plan.spec import Group, Plan


class ProcessGroups:
    """The process groups of a plan, on this rank. Plans of one process share them: a set of ranks never has two."""

    def __init__(self, plan: Plan, ties: Sequence[tuple[str, Sequence[str]]] = ()) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size != plan.world_size:
            raise PlanError(
                f"the plan is for {plan.world_size} processes, but {self.world_size} run; "
                f"start {plan.world_size}, or plan for {self.world_size}"
            )
        self._made = _made_in(_world())
        for group_set in process_groups(plan, ties):
            if group_set.purpose != "pipeline":  # its messages go from rank to rank
                for ranks in group_set.ranks:
                    self._make(ranks)

    def _make(self, ranks: tuple[int, ...]) -> None:
        if frozenset(ranks) not in self._made.handles:
            self._made.handles[frozenset(ranks)] = dist.new_group(list(ranks), sort_ranks=False), ranks

    def over(self, group: Group, axes: Sequence[str]) -> "Peers | None":
        """The ranks that differ from this one in these axes alone; none where it would be alone, or is no member.

        Every rank, members or not, must ask in the same order for axes that `process_groups` of the plan does not list.
        """
        return self.among(axis_groups(group, axes))

    def among(self, everyone: RankLists) -> "Peers | None":
        """The one of these lists of ranks that has this rank; none where it is alone there, or in none."""
        for ranks in everyone if len(everyone[0]) > 1 else ():
            self._make(ranks)
        mine = next((ranks for ranks in everyone if self.rank in ranks), ())
        return Peers(mine, mine.index(self.rank), *self._made.handles[frozenset(mine)]) if len(mine) > 1 else None

    def alone(self) -> "Peers":
        """This rank by itself, in a group that no other rank needs to know of."""
        mine = (self.rank,)
        if frozenset(mine) not in self._made.handles:
            handle = dist.new_group(list(mine), use_local_synchronization=True)
            self._made.handles[frozenset(mine)] = handle, mine
        return Peers(mine, 0, *self._made.handles[frozenset(mine)])

    def mesh(self, peers: "Peers", device_type: str) -> DeviceMesh:
        """The one-dimensional DeviceMesh of a process group, as FSDP2 wants it."""
        if peers.order not in self._made.meshes:
            self._made.meshes[peers.order] = DeviceMesh.from_group(peers.handle, device_type)
        return self._made.meshes[peers.order]


class _Made:
    """What exists in this process: groups by their ranks, each with the order that it has them in; and their meshes."""

    def __init__(self, world: dist.ProcessGroup) -> None:
        everyone = tuple(range(world.size()))
        self.handles: dict[frozenset[int], tuple[dist.ProcessGroup, tuple[int, ...]]] = {
            frozenset(everyone): (world, everyone)
        }
        self.meshes: dict[tuple[int, ...], DeviceMesh] = {}


@lru_cache(maxsize=1)
def _made_in(world: dist.ProcessGroup) -> _Made:
    """One registry as long as the default group lives. DTensor keeps meshes in caches of its own, so none is ever
    closed.
    """
    return _Made(world)


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world


_Piece = TypeVar("_Piece")
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # its name from torch 2.13 on


class Peers:
    """A process group as this rank sees it: its ranks in mesh order, its own place, torch's handle; and the order in
    which that has the ranks, which another mesh may have set.
    """

    def __init__(
        self, ranks: tuple[int, ...], place: int, handle: dist.ProcessGroup, order: tuple[int, ...] = ()
    ) -> None:
        self.ranks, self.place, self.handle, self.order = ranks, place, handle, order or ranks
        self._in_group = [ranks.index(rank) for rank in self.order]
        self._in_mesh = [self.order.index(rank) for rank in ranks]

    def _to_group(self, pieces: "Sequence[_Piece]") -> "list[_Piece]":
        """What is in mesh order, in the group's."""
        return [pieces[place] for place in self._in_group]

    def _to_mesh(self, pieces: "Sequence[_Piece]") -> "list[_Piece]":
        """The inverse."""
        return [pieces[place] for place in self._in_mesh]

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.ranks)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce in place over the group."""
        dist.all_reduce(tensor, op=op, group=self.handle)
        return tensor

    def start_all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """Begin to sum in place over the group; it is done when the result was waited for."""
        work: dist.Work | None = dist.all_reduce(tensor, group=self.handle, async_op=True)
        assert work is not None, "this rank is a member"
        return work

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, of equal shapes, in mesh order."""
        pieces = [torch.empty_like(tensor) for _ in self.ranks]
        dist.all_gather(pieces, tensor.contiguous(), group=self.handle)
        return self._to_mesh(pieces)

    def reduce_scatter(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's of as many equal slices along a dim of the sum over the group."""
        pieces = torch.stack(self._to_group(tensor.chunk(self.size, dim)))
        out = pieces.new_empty(pieces.shape[1:])
        _reduce_scatter(out, pieces.flatten(0, 1), group=self.handle)
        return out

    def all_to_all(self, sent: list[torch.Tensor]) -> list[torch.Tensor]:
        """Send `sent[i]` to the i-th of the group; what each sent us, in mesh order. All have one shape."""
        flat = torch.stack(self._to_group(sent))
        received = torch.empty_like(flat)
        dist.all_to_all_single(received, flat, group=self.handle)
        return self._to_mesh(list(received))

    def send_rows(self, rows: torch.Tensor, leaving: Sequence[int], coming: Sequence[int]) -> torch.Tensor:
        """Send runs of rows [n, ...], `leaving[i]` of them to the i-th of the group; the rows that came, of which the
        i-th sent `coming[i]`, in mesh order.
        """
        out, into = torch.cat(self._to_group(torch.split(rows, list(leaving)))), self._to_group(coming)
        received = rows.new_empty((sum(into), *rows.shape[1:]))
        dist.all_to_all_single(received, out, into, self._to_group(leaving), group=self.handle)
        return torch.cat(self._to_mesh(torch.split(received, into)))

    def pass_on(self, tensor: torch.Tensor) -> "Callable[[], torch.Tensor]":
        """Send a contiguous tensor to the next of the group, the last one's to the first. What the one before sent is
        there when the result is called.
        """
        received = torch.empty_like(tensor)
        after, before = (self.ranks[(self.place + step) % self.size] for step in (1, -1))
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, after, self.handle),
                dist.P2POp(dist.irecv, received, before, self.handle),
            ]
        )

        def wait() -> torch.Tensor:
            for work in works:
                work.wait()
            return received

        return wait

    def exchange(self, sent: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        """Send `sent[i]` to the i-th of the group and receive its piece for us, of the given shape. Pieces may be
        empty; one's own stays at home.
        """
        own = self.place
        leaving = [piece.reshape(-1)[: 0 if peer == own else None] for peer, piece in enumerate(sent)]
        counts = [0 if peer == own else math.prod(shape) for peer, shape in enumerate(shapes)]
        out, into = self._to_group(leaving), self._to_group(counts)
        received = sent[own].new_empty(sum(into))
        dist.all_to_all_single(received, torch.cat(out), into, [piece.numel() for piece in out], group=self.handle)
        pieces = self._to_mesh(torch.split(received, into))
        pieces[own] = sent[own]
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
