"""One process group for a set of ranks, in whatever order a mesh has them."""

import torch
import torch.distributed as dist

from meshwright.plan.spec import Group
from meshwright.runtime import mesh
from meshwright.train.launch import WorkerPool

ORDER = (2, 0, 3, 1)


class _Alone(mesh.ProcessGroups):
    """Groups of no plan."""

    def __init__(self) -> None:
        mesh._made_in.cache_clear()
        self.rank, self.world_size, self._made = dist.get_rank(), dist.get_world_size(), mesh._made_in(mesh._world())


def _in_mesh_order() -> tuple[int, list[list[int]]]:
    """The groups that there are, and what each collective gives, as ranks."""
    groups = _Alone()
    peers = groups.over(Group(devices=ORDER, mesh={"x": 4}), ["x"])
    assert peers is not None
    mine = torch.tensor([groups.rank])
    to_each = [torch.tensor([10 * groups.rank + to]) for to in ORDER]
    found = [
        torch.cat(peers.all_gather(mine)),
        peers.reduce_scatter(torch.tensor(ORDER), 0) // 4,
        torch.cat(peers.all_to_all(to_each)),
        torch.cat(peers.exchange(to_each, [(1,)] * 4)),
    ]
    return len(groups._made.handles), [each.tolist() for each in found]


def test_collectives_are_in_mesh_order_whatever_the_order_of_the_group(pool: WorkerPool) -> None:
    for rank, (groups, found) in enumerate(pool.run(_in_mesh_order)):
        assert groups == 1
        received = [10 * sender + rank for sender in ORDER]
        assert found == [list(ORDER), [rank], received, received]
