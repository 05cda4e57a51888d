"""Samples move between layers that divide them differently, and their gradients move back."""

import itertools

import pytest
import torch
from torch import Tensor

from meshwright.cluster.resolve import resolve_cluster
from meshwright.plan.groups import local_batch
from meshwright.plan.spec import Group, Plan, Row
from meshwright.runtime.mesh import ProcessGroups
from meshwright.runtime.redistribute import Move, moved
from meshwright.train.launch import WorkerPool
from tests.runtime.counting import CountCollectives, Counts

MESHES = ({"x": 4}, {"x": 2, "y": 2})
SAMPLES = 8


def _rows(mesh: dict[str, int]) -> list[Row]:
    choices = itertools.product(("dp", "tp"), repeat=len(mesh))
    return [Row(span="embed", roles=dict(zip(mesh, splits, strict=True))) for splits in choices]


def _plan(mesh: dict[str, int]) -> Plan:
    return Plan.from_data(
        {
            "meshwright_plan": 1,
            "model": {"name": "gpt2"},
            "cluster": {"name": resolve_cluster("cpu:4").name},
            "recipe": {"global_batch": SAMPLES, "sequence": 4},
            "micro_batches": 1,
            "groups": {"all": {"devices": "0-3", "mesh": mesh}},
            "stages": [{"on": "all", "layers": [{"span": "embed", "roles": dict.fromkeys(mesh, "dp")}]}],
        }
    )


def _every_move(mesh: dict[str, int]) -> list[tuple[str, Tensor, Tensor, Tensor, Tensor]]:
    """For each pair of rows: what arrived, what should have; the gradient that came back, what should have."""
    processes = ProcessGroups(_plan(mesh))
    group = Group(devices=(0, 1, 2, 3), mesh=mesh)
    whole = torch.arange(SAMPLES * 3.0).reshape(SAMPLES, 3)
    found = []
    for source, target in itertools.product(_rows(mesh), repeat=2):
        (first, count), (start, wanted) = (local_batch(SAMPLES, group, row, processes.rank) for row in (source, target))
        held = whole[first : first + count].clone().requires_grad_()
        move = Move(group, source, target, processes)
        arrived = moved(held, move, SAMPLES, count)
        gradient = 10.0 + whole
        arrived.backward(gradient[start : start + wanted])
        assert held.grad is not None
        name = f"{source.roles} to {target.roles}"
        found.append(
            (name, arrived.detach(), whole[start : start + wanted], held.grad, gradient[first : first + count])
        )
    return found


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_rank_gets_its_samples_and_their_gradients_come_back(pool: WorkerPool, mesh: dict[str, int]) -> None:
    for rank, found in enumerate(pool.run(_every_move, mesh)):
        for name, arrived, wanted, gradient, wanted_gradient in found:
            assert torch.equal(arrived, wanted), f"rank {rank}: {name}"
            assert torch.equal(gradient, wanted_gradient), f"rank {rank}: {name}: gradient"


def _kinds(mesh: dict[str, int]) -> dict[str, Counts]:
    """Which collectives each move uses."""
    processes = ProcessGroups(_plan(mesh))
    group = Group(devices=(0, 1, 2, 3), mesh=mesh)
    kinds = {}
    for source, target in itertools.product(_rows(mesh), repeat=2):
        count = local_batch(SAMPLES, group, source, processes.rank)[1]
        move = Move(group, source, target, processes)
        with CountCollectives() as counting:
            move(torch.zeros(count, 2), SAMPLES)
        name = " to ".join("".join(str(role) for role in row.roles.values()) for row in (source, target))
        kinds[name] = counting.counts
    return kinds


def test_no_more_moves_than_must(pool: WorkerPool) -> None:
    row = 2 * 4
    for rank, kinds in enumerate(pool.run(_kinds, {"x": 2, "y": 2})):
        for quiet in ("tptp to dpdp", "dptp to dpdp", "tpdp to tpdp"):
            assert not kinds[quiet]
        assert kinds["dpdp to dptp"] == {("all_gather", 4 * row): 1}
        assert kinds["dpdp to tptp"] == {("all_gather", 8 * row): 1}
        # Halves by x become halves by y: of its new half, a rank on the diagonal holds all, another nothing.
        assert kinds["dptp to tpdp"] == {("exchange", 0 if rank in (0, 3) else 4 * row): 1}
