"""Process groups: one for each set of ranks that a plan uses, made once and shared.

Every rank makes every group, in the plan's order, whether it is a member or not: torch numbers groups by the order of
their making, and a rank that leaves one out hangs at a later collective.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.errors import PlanError
from meshwright.plan.groups import axis_groups, process_groups
from meshwright.plan.spec import Group, Plan


class ProcessGroups:
    """The process groups of a plan, on this rank. Plans of one process share them: a set of ranks never has two."""

    def __init__(self, plan: Plan) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size != plan.world_size:
            raise PlanError(
                f"the plan is for {plan.world_size} processes, but {self.world_size} run; "
                f"start {plan.world_size}, or plan for {self.world_size}"
            )
        self._made = _made_in(_world())
        for group_set in process_groups(plan):
            for ranks in group_set.ranks:
                self._make(ranks)

    def _make(self, ranks: tuple[int, ...]) -> None:
        if ranks not in self._made.handles:
            self._made.handles[ranks] = dist.new_group(list(ranks), sort_ranks=False)

    def over(self, group: Group, axes: Sequence[str]) -> "Peers | None":
        """The ranks that differ from this one in these axes alone; none where it would be alone.

        Every rank must ask in the same order for axes that `process_groups` of the plan does not list.
        """
        everyone = axis_groups(group, axes)
        mine = next(ranks for ranks in everyone if self.rank in ranks)
        if len(mine) == 1:
            return None
        for ranks in everyone:
            self._make(ranks)
        return Peers(mine, mine.index(self.rank), self._made.handles[mine])

    def mesh(self, peers: "Peers", device_type: str) -> DeviceMesh:
        """The one-dimensional DeviceMesh of a process group, as FSDP2 wants it."""
        if peers.ranks not in self._made.meshes:
            self._made.meshes[peers.ranks] = DeviceMesh.from_group(peers.handle, device_type)
        return self._made.meshes[peers.ranks]


class _Made:
    """What exists in this process: groups by their ranks, and their meshes."""

    def __init__(self, world: dist.ProcessGroup) -> None:
        self.handles: dict[tuple[int, ...], dist.ProcessGroup] = {tuple(range(world.size())): world}
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


class Peers:
    """A process group as this rank sees it: its ranks in mesh order, its own place, torch's handle."""

    def __init__(self, ranks: tuple[int, ...], place: int, handle: dist.ProcessGroup) -> None:
        self.ranks, self.place, self.handle = ranks, place, handle

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.ranks)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce in place over the group."""
        dist.all_reduce(tensor, op=op, group=self.handle)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, of equal shapes, in mesh order."""
        pieces = [torch.empty_like(tensor) for _ in self.ranks]
        dist.all_gather(pieces, tensor.contiguous(), group=self.handle)
        return pieces

    def exchange(self, sent: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        """Send `sent[i]` to the i-th of the group and receive its piece for us, of the given shape. Pieces may be
        empty; one's own stays at home.
        """
        away = [0 if peer == self.place else 1 for peer in range(self.size)]
        counts = [math.prod(shape) * leaves for shape, leaves in zip(shapes, away, strict=True)]
        flat = torch.cat(
            [piece.reshape(-1)[: piece.numel() * leaves] for piece, leaves in zip(sent, away, strict=True)]
        )
        received = flat.new_empty(sum(counts))
        leaving = [piece.numel() * leaves for piece, leaves in zip(sent, away, strict=True)]
        dist.all_to_all_single(received, flat, counts, leaving, group=self.handle)
        pieces = list(torch.split(received, counts))
        pieces[self.place] = sent[self.place]
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
