"""What one stage spends its time on: computing and communication, by micro-batch and at the end of a step."""

import math
from dataclasses import dataclass, field

from meshwright.cost.blocks import Block
from meshwright.cost.collectives import Network, Way, seconds
from meshwright.cost.compute import Seconds, layer_seconds, machines, optimizer_bytes
from meshwright.cost.flows import Flow, Purpose
from meshwright.cost.moves import pairs
from meshwright.cost.placement import Placement
from meshwright.cost.schedule import Link, StageTime
from meshwright.cost.states import sharding_of
from meshwright.cost.volumes import (
    Collective,
    block_flows,
    edge_crossing,
    edge_flows,
    held_by,
    tied_collectives,
    whole_step,
)
from meshwright.plan.groups import axis_groups
from meshwright.plan.spec import Group

PART_OF: dict[Purpose, str] = {
    "tensor": "tensor",
    "loss": "tensor",
    "context": "sequence",
    "sequence": "sequence",
    "expert": "expert",
    "shard": "state",
    "gradient": "state",
    "transition": "transition",
}
"""What a collective is for → the part of an estimate that its time goes to."""

PARTS = ("forward", "recompute", "backward", "optimizer", "tensor", "sequence", "expert", "state", "transition")
"""What a stage spends its time on."""


@dataclass
class Spent:
    """Seconds by part."""

    parts: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, time: float) -> None:
        """So much more for a part."""
        if time:
            self.parts[part] = self.parts.get(part, 0.0) + time

    @property
    def total(self) -> float:
        """All parts."""
        return sum(self.parts.values())


class StageWork:
    """One stage: what a micro-batch takes each way, and what the end of a step takes."""

    def __init__(self) -> None:
        self.forward, self.backward = Spent(), Spent()
        self.reduce, self.optimizer, self.update = Spent(), Spent(), Spent()

    def time(self) -> StageTime:
        """As the simulation wants it."""
        return StageTime(
            self.forward.total, self.backward.total, self.reduce.total, self.optimizer.total, self.update.total
        )

    def step(self, micro_batches: int) -> dict[str, float]:
        """Seconds of a whole step by part."""
        total = Spent()
        for spent, times in (
            (self.forward, micro_batches),
            (self.backward, micro_batches),
            (self.reduce, 1),
            (self.optimizer, 1),
            (self.update, 1),
        ):
            for part, time in spent.parts.items():
                total.add(part, times * time)
        return total.parts

    def flow(self, flow: Flow, time: float) -> None:
        """Put a collective where it happens."""
        spent = {"forward": self.forward, "reduce": self.reduce, "update": self.update}.get(flow.when, self.backward)
        spent.add(PART_OF[flow.purpose], time)


class Stages:
    """The stages of a plan with their times, and the links between them."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.network = placement, Network(placement.inputs.cluster)
        self.work = [StageWork() for _ in placement.plan.stages]
        for block in placement.blocks:
            self._block(block)
        self.links = self._edges()
        for collective in (*tied_collectives(placement), *whole_step(placement)):
            if collective.purpose != "norm":
                self._once(collective)

    def _block(self, block: Block) -> None:
        work, layers = self.work[block.stage], len(block.names)
        kinds = tuple(machines(self.placement, block.group))
        computing = self.placement.once(("seconds", block.likeness, kinds), lambda: self._computing(block))
        work.forward.add("forward", layers * computing.forward)
        work.backward.add("recompute", layers * computing.recompute)
        work.backward.add("backward", layers * computing.backward)
        for flow in block_flows(self.placement, block):
            work.flow(flow, layers * flow.times * self._flow_seconds(block.group, flow))
        work.optimizer.add("optimizer", layers * self._optimizer(block))

    def _computing(self, block: Block) -> Seconds:
        """One layer on the slowest kind of device of its group."""
        placement, storage = self.placement, self.placement.storage(block.group)
        shares = dict(zip((part.name for part in block.stack.parts), placement.shares(block), strict=True))
        slowest = Seconds()
        for machine in machines(placement, block.group):
            here = Seconds()
            for row, parts in block.rows():
                under = [share for part in parts for share in shares[part.name]]
                here = here.plus(layer_seconds(under, row.recompute, placement.kernels, storage, machine))
            slowest = Seconds(*(max(one, other) for one, other in zip(slowest, here, strict=True)))
        return slowest

    def _optimizer(self, block: Block) -> float:
        """Bound by memory."""
        mesh, moved = self.placement.group(block.group).mesh, 0.0
        for row, held in held_by(self.placement, block):
            sharding = sharding_of(self.placement.state_row(block, row), mesh)
            moved += optimizer_bytes(self.placement.recipe, held.learning / sharding.ways)
        return max(moved / each.memory * each.slowdown for each in machines(self.placement, block.group))

    def _flow_seconds(self, group: str, flow: Flow) -> float:
        way, ranks = self._way(group, flow.axes)
        return seconds(flow.kind, flow.bytes, ranks, way)

    def _way(self, group: str, axes: tuple[str, ...]) -> tuple[Way, int]:
        """What the slowest process group over some axes gets, and its ranks. Equal for groups that lie alike."""
        found, network = self.placement.group(group), self.network
        lie = self.placement.once(("lie", group), lambda: self._lie(found))

        def slowest() -> tuple[Way, int]:
            lists = axis_groups(found, axes)
            return network.slowest(lists), len(lists[0])

        return self.placement.once(("way", lie, axes), slowest)

    def _lie(self, group: Group) -> int:
        """A number that is equal for groups of one mesh that lie alike in the cluster."""
        return self.placement.number((self.network.pattern(group.devices), tuple(group.mesh.items())))

    def _crossing_way(self, source: str, target: str) -> Way:
        """What the slowest pair between two groups gets."""
        one, other = self.placement.group(source), self.placement.group(target)
        key = ("pairs", self.network.pattern(one.devices + other.devices), one.size)
        return self.placement.once(key, lambda: self.network.slowest(pairs(one, other)))

    def _edges(self) -> list[Link]:
        """Moves inside a group belong to the reading stage; what crosses groups travels while both go on."""
        travel: dict[tuple[int, int], tuple[float, float]] = {}
        for edge in self.placement.edges:
            source, target = edge.source, edge.target
            if source.group == target.group:
                for flow in edge_flows(self.placement, edge):
                    self.work[target.stage].flow(flow, flow.times * self._flow_seconds(target.group, flow))
                continue
            crossed = edge_crossing(self.placement, edge)
            way = self._crossing_way(source.group, target.group)
            there, back = travel.get((source.stage, target.stage), (0.0, 0.0))
            there += seconds("p2p", crossed.forward, 2, way)
            back += seconds("p2p", crossed.backward, 2, way) if crossed.backward else 0.0
            travel[source.stage, target.stage] = there, back
        return [Link(source, target, *times) for (source, target), times in travel.items()]

    def _once(self, collective: Collective) -> None:
        """What several groups do together at the end of a step."""
        way = self.network.way(collective.ranks)
        names = collective.group.split(" > ")
        for stage, placed in enumerate(self.placement.plan.stages):
            if placed.on in names:
                time = seconds(collective.kind, collective.bytes, len(collective.ranks), way)
                self.work[stage].reduce.add("state", time)

    def norm_seconds(self) -> float | None:
        """The reduction of the gradient norm over all ranks, all of it latency; none where nothing is clipped."""
        if self.placement.recipe.clip_norm is None:
            return None
        norm = [one for one in whole_step(self.placement) if one.purpose == "norm"]
        return sum(
            seconds(one.kind, 0.0, len(one.ranks), Way(math.inf, self.network.latency(one.ranks))) for one in norm
        )
