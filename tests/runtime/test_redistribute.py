"""Samples move between layers that divide them differently, and their gradients move back."""

import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cost.moves import moves
from meshwright.plan.divisions import division
from meshwright.plan.groups import local_batch
from meshwright.plan.positions import between_layers
from meshwright.plan.spec import Group, Plan, Row
from meshwright.runtime.mesh import ProcessGroups
from meshwright.runtime.redistribute import Move, moved
from meshwright.train.launch import WorkerPool
from tests.runtime.counting import CountCollectives, Counts

MESHES = ({"x": 4}, {"x": 2, "y": 2})
SAMPLES, LENGTH = 8, 8


def _rows(mesh: dict[str, int]) -> list[Row]:
    choices = itertools.product(("dp", "tp", "tp+sp"), repeat=len(mesh))
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


def _held(group: Group, row: Row, rank: int) -> tuple[slice, slice]:
    (first, count), (start, length) = (
        local_batch(SAMPLES, group, row, rank),
        between_layers(LENGTH, group, row, rank),
    )
    return slice(first, first + count), slice(start, start + length)


def _every_move(mesh: dict[str, int]) -> list[tuple[str, Tensor, Tensor, Tensor, Tensor]]:
    """For each pair of rows: what arrived, what should have; the gradient that came back, what should have."""
    processes = ProcessGroups(_plan(mesh))
    group = Group(devices=(0, 1, 2, 3), mesh=mesh)
    whole = torch.arange(SAMPLES * LENGTH * 3.0).reshape(SAMPLES, LENGTH, 3)
    found = []
    for source, target in itertools.product(_rows(mesh), repeat=2):
        here, there = (_held(group, row, processes.rank) for row in (source, target))
        held = whole[here].clone().requires_grad_()
        arrived = moved(held, Move(group, source, target, processes))
        gradient = 10.0 + whole
        arrived.backward(gradient[there])
        assert held.grad is not None
        name = f"{source.roles} to {target.roles}"
        found.append((name, arrived.detach(), whole[there], held.grad, gradient[here]))
    return found


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_rank_gets_its_samples_and_their_gradients_come_back(pool: WorkerPool, mesh: dict[str, int]) -> None:
    for rank, found in enumerate(pool.run(_every_move, mesh)):
        for name, arrived, wanted, gradient, wanted_gradient in found:
            assert torch.equal(arrived, wanted), f"rank {rank}: {name}"
            assert torch.equal(gradient, wanted_gradient), f"rank {rank}: {name}: gradient"


def _kinds(mesh: dict[str, int]) -> dict[str, tuple[Counts, Counts]]:
    """Which collectives each move uses, and which `cost.moves` says; of exchanges the bytes that come."""
    processes = ProcessGroups(_plan(mesh))
    group = Group(devices=(0, 1, 2, 3), mesh=mesh)
    kinds = {}
    for source, target in itertools.product(_rows(mesh), repeat=2):
        samples, positions = _held(group, source, processes.rank)
        move = Move(group, source, target, processes)
        with CountCollectives() as counting:
            move(torch.zeros(samples.stop - samples.start, positions.stop - positions.start))
        flows = moves(mesh, division(source, mesh), division(target, mesh), 4.0 * SAMPLES * LENGTH)
        said: Counts = Counter((flow.kind, round(flow.bytes)) for flow in flows)
        name = " to ".join("/".join(str(role) for role in row.roles.values()) for row in (source, target))
        kinds[name] = counting.counts, said
    return kinds


def _apart(counts: Counts) -> tuple[Counts, int]:
    """The counts without exchanges, and the bytes of these."""
    rest = Counter({key: times for key, times in counts.items() if key[0] != "exchange"})
    return rest, sum(key[1] * times for key, times in counts.items() if key[0] == "exchange")


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_move_takes_the_collectives_that_the_cost_core_says(pool: WorkerPool, mesh: dict[str, int]) -> None:
    for name, ranks in _by_name(pool.run(_kinds, mesh)).items():
        wanted, exchanged = _apart(ranks[0][1])
        counted = [_apart(found) for found, _ in ranks]
        assert [rest for rest, _ in counted] == [wanted] * len(ranks), name
        assert max(size for _, size in counted) == exchanged, name


def _by_name(found: list[dict[str, tuple[Counts, Counts]]]) -> dict[str, list[tuple[Counts, Counts]]]:
    return {name: [kinds[name] for kinds in found] for name in found[0]}
