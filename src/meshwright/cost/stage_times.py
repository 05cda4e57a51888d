"""What each stage of a plan spends its time on, by micro-batch and at the end of a step, and how groups are joined."""

import math
from collections.abc import Callable, Iterable, Sequence

from meshwright.cost.collectives import TRAFFIC, Way, seconds
from meshwright.cost.flows import Flow, Kind
from meshwright.cost.layer_times import PART_OF, LayerSeconds, OneWay, Spent, time_layer
from meshwright.cost.overlap import MIB, Ready, Streams, exposed_reduction, one_pass
from meshwright.cost.placement import Placement
from meshwright.cost.simulation import Link, StageTime
from meshwright.cost.volumes import Collective, edge_crossing, edge_flows, tied_collectives, whole_step
from meshwright.cost.wires import Wires
from meshwright.plan.groups import RankLists, axis_groups, tied_ranks

PARTS = (
    "forward", "recompute", "backward", "optimizer", "tensor", "sequence", "expert", "state", "transition", "offload",
)  # fmt: skip
"""What a stage spends its time on; of communication, what computing waits for."""


class StageWork:
    """One stage: what a micro-batch takes each way, and what the end of a step takes."""

    def __init__(self) -> None:
        self.forward, self.backward = Spent(), Spent()
        self.reduce, self.optimizer, self.update = Spent(), Spent(), Spent()
        self.weight = 0.0
        """Of backward, the gradients of the weights."""

    def time(self) -> StageTime:
        """As the simulation wants it."""
        return StageTime(
            forward=self.forward.total,
            backward=self.backward.total,
            reduce=self.reduce.total,
            optimizer=self.optimizer.total,
            update=self.update.total,
            weight=self.weight,
        )

    def step(self, micro_batches: int) -> dict[str, float]:
        """Seconds of a whole step by part."""
        total = Spent()
        for spent in (self.forward, self.backward):
            total.add_all(spent.parts, micro_batches)
        for spent in (self.reduce, self.optimizer, self.update):
            total.add_all(spent.parts)
        return total.parts


class Stages:
    """The stages of a plan with their times, and the links between them."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.wires = placement, Wires(placement)
        self.work = [self._stage(number) for number in range(len(placement.plan.stages))]
        self.links = self._edges()
        at_end = [*tied_collectives(placement), *whole_step(placement)]
        for collective in at_end:
            if collective.purpose != "norm":
                self._once(collective)
        self.norm = self._norm_seconds(one for one in at_end if one.purpose == "norm")
        """Seconds of the gradient norm's reduction, for which all groups wait; none where nothing is clipped."""

    def _stage(self, stage: int) -> StageWork:
        work, placement, group = StageWork(), self.placement, self.placement.plan.stages[stage].on
        timed = {block: time_layer(placement, self.wires, block) for block in placement.stage_blocks(stage)}
        names = [placed.layer for placed in placement.plan.placed if placed.stage == stage]
        layers = [timed[placement.block_of[name]] for name in names]
        streams = self._streams(group)
        _pass(work.forward, [layer.forward for layer in layers], streams)
        _pass(work.backward, [layer.backward for layer in reversed(layers)], streams)
        for layer in layers:
            work.weight += layer.weight
            work.optimizer.add_all(layer.optimizer.parts)
            work.update.add_all(layer.update.parts)
        work.reduce.add("state", self._exposed(group, layers))
        return work

    def _streams(self, group: str) -> Streams:
        able = self.placement.overlaps(group) and "gathers" in self.placement.plan.execution.overlap
        return Streams(self.placement.plan.execution.prefetch, able, self.placement.calibration.contention)

    def _exposed(self, group: str, layers: Sequence[LayerSeconds]) -> float:
        """What is left of the reductions of gradients once a step when the last backward ends."""
        hides = self.placement.overlaps(group) and "gradients" in self.placement.plan.execution.overlap
        flows = [flow for layer in layers for flow in layer.once]
        if not flows:
            return 0.0
        ready = [
            Ready(layer.backward.spent.total if hides else 0.0, sum(flow.bytes * flow.times for flow in layer.once))
            for layer in reversed(layers)
        ]
        return exposed_reduction(ready, self.placement.plan.execution.bucket_mib * MIB, self._bucket(group, flows))

    def _bucket(self, group: str, flows: Sequence[Flow]) -> Callable[[float], float]:
        """The time of one bucket of gradients: where they go over several axes, each has its share of it."""
        sizes: dict[tuple[Kind, tuple[str, ...]], float] = {}
        for flow in flows:
            sizes[flow.kind, flow.axes] = sizes.get((flow.kind, flow.axes), 0.0) + flow.bytes * flow.times
        total = sum(sizes.values())
        ways = [
            (kind, size / total, *self.wires.way(group, axes, TRAFFIC[kind])) for (kind, axes), size in sizes.items()
        ]
        return lambda size: sum(seconds(kind, size * share, ranks, way) for kind, share, way, ranks in ways)

    def _edges(self) -> list[Link]:
        """Moves inside a group belong to the reading stage; what crosses groups travels while both go on."""
        travel: dict[tuple[int, int], tuple[float, float]] = {}
        for edge in self.placement.edges:
            source, target = edge.source, edge.target
            if source.group == target.group:
                work = self.work[target.stage]
                for flow in edge_flows(self.placement, edge):
                    spent = work.forward if flow.when == "forward" else work.backward
                    spent.add(PART_OF[flow.purpose], self.wires.flow_seconds(target.group, flow))
                travel.setdefault((source.stage, target.stage), (0.0, 0.0))
                continue
            crossed = edge_crossing(self.placement, edge)
            there, back = travel.get((source.stage, target.stage), (0.0, 0.0))
            there += self.wires.crossing(source.group, target.group, crossed.forward)
            back += self.wires.crossing(target.group, source.group, crossed.backward)
            travel[source.stage, target.stage] = there, back
        return [Link(source, target, *times) for (source, target), times in travel.items() if source != target]

    def _once(self, collective: Collective) -> None:
        """What one or several groups do together at the end of a step, each once, whatever stages it has."""
        way = self.wires.network.slowest(self._lists(collective), TRAFFIC[collective.kind])
        time = seconds(collective.kind, collective.bytes, len(collective.ranks), way)
        on = [stage.on for stage in self.placement.plan.stages]
        for group in collective.groups:
            self.work[on.index(group)].reduce.add("state", time)

    def _lists(self, collective: Collective) -> RankLists:
        """All the process groups that do what the first does."""
        placement = self.placement
        if collective.axes:
            return axis_groups(placement.group(collective.groups[0]), collective.axes)
        members = (collective.span, *dict(placement.ties)[collective.span])
        return tied_ranks(placement.plan, [placement.placed(name) for name in members])

    def _norm_seconds(self, reductions: Iterable[Collective]) -> float | None:
        """Over all ranks, all of it latency."""
        if self.placement.recipe.clip_norm is None:
            return None
        latency = self.wires.network.latency
        return sum(seconds(one.kind, 0.0, len(one.ranks), Way(math.inf, latency(one.ranks))) for one in reductions)


def _pass(spent: Spent, ways: Sequence[OneWay], streams: Streams) -> None:
    """One micro-batch through a stage: what stands in the way, and what is exposed of what runs beside."""
    for way in ways:
        spent.add_all(way.spent.parts)
    computing, copied = spent.total, sum(way.copied for way in ways)
    spent.add("state", one_pass([way.time for way in ways], streams).exposed)
    spent.add("offload", max(0.0, copied - computing))
