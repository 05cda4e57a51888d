"""What offload fills: the memory of a node's host, as a peak over the instants of a step.

A node's host keeps, for each of the node's ranks, what the rank's device does not: parameters, optimizer states with
the gradients that they are stepped by, and the activations of the micro-batches in flight. With bf16 parameters, fp32
gradients, a master copy and Adam's moments that is 2 + 4 + 12 = 18 bytes a parameter where all is offloaded, as
DeepSpeed counts for ZeRO-3 (`estimate_zero3_model_states_mem_needs`, its documentation, "Memory Requirements").
Parameters, gradients and optimizer states have places of their own throughout. Several groups of one node may be
fullest at different times; their peaks are added up all the same.

What the processes themselves, their input pipelines and the system take is not counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.cluster.spec import Pool
from meshwright.cost.activations import layer_activations
from meshwright.cost.footprint import Range
from meshwright.cost.layer_states import States, states_away
from meshwright.cost.memory import Filled, Instant, in_flight
from meshwright.cost.placement import Placement
from meshwright.plan.orders import FORWARD, INPUT, WEIGHT, Order
from meshwright.plan.spec import Offload


@dataclass(frozen=True)
class HostMemory(Filled):
    """The host of a node; where others are filled alike, of the first of them."""

    pool: str
    node: int
    """Of its pool, from 0 on."""
    alike: int
    """Nodes that are filled alike."""
    ranks: int
    """Of the node, with something offloaded."""
    factor: tuple[float, float]
    """What a byte that is kept takes up: low and high."""

    @property
    def where(self) -> str:
        """The node in words."""
        return f"the host of node {self.node} of pool '{self.pool}' ({self.stage_names}, at {self.worst.name})"

    @property
    def asked(self) -> Range:
        """Bytes of the host."""
        return Range(*(self.peak * factor for factor in self.factor))

    def as_data(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "pool": self.pool,
            "node": self.node,
            "alike": self.alike,
            "ranks": self.ranks,
            "stages": list(self.stages),
            "memory_peak_bytes": self.peak,
            "memory_bytes": self.capacity,
            "fits": self.fits,
            "out_of_memory": self.out_of_memory,
            "peak_at": self.worst.name,
            "footprint": list(self.asked),
            "memory": {each.name: {"total": each.total} | each.parts for each in self.instants},
        }


def host_memory(placement: Placement) -> tuple[HostMemory, ...]:
    """The host of every node where something is offloaded, as far as the cluster says what it has; of nodes that are
    filled alike the first.
    """
    running = zip(placement.running, placement.orders, strict=True)
    away = {group: _of_one_rank(placement, group, order) for group, order in running if _offloads(placement, group)}
    alike: dict[tuple[object, ...], list[_Node]] = {}
    for node in _nodes(placement, tuple(away)):
        alike.setdefault((node.pool.name, *node.ranks.items()), []).append(node)
    filled = (_filled(placement, nodes, away) for nodes in alike.values())
    return tuple(each for each in filled if each.peak)


def _offloads(placement: Placement, group: str) -> bool:
    stages = (stage for stage in placement.plan.stages if stage.on == group)
    return any(row.offload != Offload() for stage in stages for row in stage.layers)


def _of_one_rank(placement: Placement, group: str, order: Order) -> tuple[Instant, ...]:
    """What the host keeps for one rank of a group, which runs its actions in this order."""
    stages = [number for number, stage in enumerate(placement.plan.stages) if stage.on == group]
    states, activations = States(), np.zeros(len(stages))
    for place, stage in enumerate(stages):
        for block in placement.stage_blocks(stage):
            states = states.plus(states_away(placement, block), len(block.names))
            activations[place] += len(block.names) * layer_activations(placement, block).away
    resting = {"parameters": states.parameters, "gradients": states.gradients, "optimizer": states.optimizer}
    until = WEIGHT if placement.kernels.retains else INPUT
    over_time = in_flight(order, activations[np.searchsorted(stages, order.stage)], until=until)
    worst = [float(over_time[where].max(initial=0.0)) for where in (order.kind == FORWARD, order.kind != FORWARD)]
    return (
        Instant("initialisation", resting),
        Instant("forward", resting | {"activations": worst[0]}),
        Instant("backward", resting | {"activations": worst[1]}),
        Instant("step", resting),
    )


class _Node(NamedTuple):
    pool: Pool
    number: int
    """In its pool."""
    ranks: dict[str, int]
    """Of each group with offload."""


def _nodes(placement: Placement, groups: Sequence[str]) -> Iterator[_Node]:
    """The nodes that ranks of these groups are in, of the pools whose hosts are known."""
    cluster = placement.inputs.cluster
    for pool, start in zip(cluster.pools, cluster.starts, strict=True):
        if pool.host is None:
            continue
        found: dict[int, dict[str, int]] = {}
        for group in groups:
            devices = np.array(placement.group(group).devices) - start
            inside = devices[(devices >= 0) & (devices < pool.size)] // pool.levels[0].size
            for number, count in zip(*(each.tolist() for each in np.unique(inside, return_counts=True)), strict=True):
                found.setdefault(number, {})[group] = count
        yield from (_Node(pool, number, found[number]) for number in sorted(found))


def _filled(placement: Placement, nodes: Sequence[_Node], away: Mapping[str, Sequence[Instant]]) -> HostMemory:
    """The first of these nodes, with what the host keeps for all its ranks together."""
    pool, number, ranks = nodes[0]
    assert pool.host is not None  # `_nodes` leaves out others
    instants = []
    for place, name in enumerate(each.name for each in next(iter(away.values()))):
        parts: dict[str, float] = {}
        for group, count in ranks.items():
            for part, size in away[group][place].parts.items():
                parts[part] = parts.get(part, 0.0) + count * size
        instants.append(Instant(name, parts))
    return HostMemory(
        stages=tuple(at for at, stage in enumerate(placement.plan.stages) if stage.on in ranks),
        capacity=pool.host.memory,
        instants=tuple(instants),
        pool=pool.name,
        node=number,
        alike=len(nodes),
        ranks=sum(ranks.values()),
        factor=placement.calibration.host,
    )
