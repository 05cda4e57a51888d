"""What each stage of a plan spends its time on, by micro-batch and at the end of a step, and how groups are joined."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from meshwright.cost.collectives import TRAFFIC, Way, seconds
from meshwright.cost.compute import machines
from meshwright.cost.flows import Flow, Kind
from meshwright.cost.layer_times import PART_OF, LayerSeconds, OneWay, Spent, time_layer
from meshwright.cost.overlap import MIB, LayerTime, Ready, Reduction, Streams, one_pass
from meshwright.cost.placement import Placement
from meshwright.cost.simulation import Link, StageTime, Tied
from meshwright.cost.volumes import Collective, edge_crossing, edge_flows, part_flows, tied_collectives, whole_step
from meshwright.cost.wires import Wires
from meshwright.plan.groups import tied_ranks

PARTS = (
    "forward", "recompute", "backward", "optimizer", "tensor", "sequence", "expert", "state", "transition", "launch",
    "offload",
)  # fmt: skip
"""What a stage spends its time on; of communication, what computing waits for."""


class StageWork:
    """One stage: what a micro-batch takes each way, and what the end of a step takes."""

    def __init__(self) -> None:
        self.forward, self.backward = Spent(), Spent()
        self.reduce, self.optimizer, self.update = Spent(), Spent(), Spent()
        self.weight = 0.0
        """Of backward, the gradients of the weights."""

    def copy(self) -> "StageWork":
        """One to which more can be added."""
        other = StageWork()
        for name in ("forward", "backward", "reduce", "optimizer", "update"):
            setattr(other, name, Spent(dict(getattr(self, name).parts)))
        other.weight = self.weight
        return other

    def time(self) -> StageTime:
        """As the simulation wants it."""
        return StageTime(
            forward=self.forward.total,
            backward=self.backward.total,
            reduce=self.reduce.total,
            optimizer=self.optimizer.total,
            update=self.update.total,
            weight=self.weight,
            forward_sent=self.forward.parts.get("expert", 0.0),
            backward_sent=self.backward.parts.get("expert", 0.0),
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
        self.reductions: dict[int, Reduction] = {}
        """Stage → the gradients that it reduces once a step, where it does."""
        self.work = [self._stage(number) for number in range(len(placement.plan.stages))]
        self.links = self._edges()
        self.tied = [self._tied(collective) for collective in tied_collectives(placement)]
        at_end = placement.once("whole step", lambda: list(whole_step(placement)))
        for collective in at_end:
            if collective.purpose == "loss" and collective.groups:  # for what is told to all nobody waits
                work = self.work[self._first(*collective.groups)]
                work.reduce.add("state", self._once(collective))
        self.norm = self._norm_seconds(one for one in at_end if one.purpose == "norm")
        """Seconds of the gradient norm's reduction, for which all groups wait; none where nothing is clipped."""

    def _stage(self, stage: int) -> StageWork:
        """Equal ones of groups that lie alike are timed once."""
        placement, group = self.placement, self.placement.plan.stages[stage].on
        timed = {block: time_layer(placement, self.wires, block) for block in placement.stage_blocks(stage)}
        layers = [timed[block] for block in placement.stage_layers[stage]]
        key = ("stage", self.wires.lie(group), tuple(map(id, layers)))
        work, reduction = placement.calibrated(key, lambda: self._timed(group, layers))
        if reduction.layers:
            self.reductions[stage] = reduction
        return work.copy()

    def _timed(self, group: str, layers: Sequence[LayerSeconds]) -> tuple[StageWork, Reduction]:
        """Such layers one after the other on a group, and the gradients that they reduce once a step."""
        work = StageWork()
        streams, host = self._streams(group), self._host(group)
        _pass(work.forward, [layer.forward for layer in layers], streams, host)
        _pass(work.backward, [layer.backward for layer in reversed(layers)], streams, host)
        for layer in layers:
            work.weight += layer.weight
            work.optimizer.add_all(layer.optimizer.parts)
            work.update.add_all(layer.update.parts)
        reduction = self._reduction(group, layers, work.backward.total)
        if reduction.layers:
            work.reduce.add("state", reduction.exposed(self.placement.plan.execution.bucket_mib * MIB))
        return work, reduction

    def times(self) -> list[StageTime]:
        """Of each stage, as the simulation wants them."""
        return [work.time() for work in self.work]

    def times_in_buckets(self, bucket_mib: float) -> list[StageTime]:
        """The same, were gradients reduced in buckets of this size."""
        found, own = self.times(), self.placement.plan.execution.bucket_mib
        for stage, reduction in self.reductions.items():
            change = reduction.exposed(bucket_mib * MIB) - reduction.exposed(own * MIB)
            found[stage] = found[stage]._replace(reduce=max(0.0, found[stage].reduce + change))
        return found

    def _streams(self, group: str) -> Streams:
        able = self.placement.overlaps(group) and "gathers" in self.placement.plan.execution.overlap
        return Streams(self.placement.plan.execution.prefetch, able, self.placement.calibration.contention)

    def _host(self, group: str) -> "_Host":
        ahead, found = self.placement.overlaps(group), machines(self.placement, group)
        slowest = max(machine.reached.launch * (1.0 if ahead else machine.slowdown) for machine in found)
        return _Host(slowest, ahead=ahead)

    def _reduction(self, group: str, layers: Sequence[LayerSeconds], backward: float) -> Reduction:
        """The gradients of layers that are reduced once a step, beside the last backward where they hide."""
        hides = self.placement.overlaps(group) and "gradients" in self.placement.plan.execution.overlap
        flows = [flow for layer in layers for flow in layer.once]
        streams = self._streams(group)
        ready = tuple(
            Ready(
                _beside(time, streams, hides=hides),
                sum(flow.bytes * flow.times for flow in layer.once) / layer.backward.pieces,
            )
            for layer in reversed(layers)
            for time in layer.backward.times
        )
        until = backward if hides else 0.0
        return Reduction(ready if flows else (), self._bucket(group, flows), until, streams.prefetch)

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
            for end, flow in part_flows(self.placement, edge):
                work = self.work[end.stage]
                spent = work.forward if flow.when == "forward" else work.backward
                spent.add(PART_OF[flow.purpose], self.wires.flow_seconds(end.group, flow))
            crossed = edge_crossing(self.placement, edge)
            there, back = travel.get((source.stage, target.stage), (0.0, 0.0))
            there += self.wires.crossing(source.group, target.group, crossed.forward)
            back += self.wires.crossing(target.group, source.group, crossed.backward)
            travel[source.stage, target.stage] = there, back
        return [Link(source, target, *times) for (source, target), times in travel.items() if source != target]

    def _tied(self, collective: Collective) -> Tied:
        """A gradient that groups sum together at the end of a step, once, whatever stages they have."""
        return Tied(tuple(map(self._first, collective.groups)), self._once(collective))

    def _first(self, group: str) -> int:
        """The number of a group's first stage."""
        return next(number for number, stage in enumerate(self.placement.plan.stages) if stage.on == group)

    def _once(self, collective: Collective) -> float:
        """Seconds of what happens once a step."""
        placement, traffic = self.placement, TRAFFIC[collective.kind]
        if collective.axes:
            way, _ = self.wires.way(collective.groups[0], collective.axes, traffic)
        else:
            members = (collective.span, *dict(placement.ties)[collective.span])
            tied = tied_ranks(placement.plan, [placement.placed(name) for name in members])
            way = self.wires.network.slowest(tied, traffic)
        return seconds(collective.kind, collective.bytes, len(collective.ranks), way)

    def _norm_seconds(self, reductions: Iterable[Collective]) -> float | None:
        """Over all ranks, all of it latency."""
        if self.placement.recipe.clip_norm is None:
            return None
        latency = self.wires.network.latency
        return sum(seconds(one.kind, 0.0, len(one.ranks), Way(math.inf, latency(one.ranks))) for one in reductions)


class _Host(NamedTuple):
    """What launches the kernels of a group."""

    launch: float
    """Seconds of one; where ranks share cores, these launch in turn too."""
    ahead: bool
    """True where it launches while earlier kernels run, and is waited for only where these are quicker; on a CPU each
    operation is launched and run in turn."""

    def waited(self, ways: Sequence[OneWay], computing: float) -> float:
        """Seconds that a device waits for the host, of layers one after the other which take so long by themselves.

        A host is ahead by what it has launched while earlier layers ran, and is not before any layer: of a layer that
        takes 4 seconds to launch and 1 to run, and one the other way about, the second waits for the first, which
        does not wait for the second.

        >>> small, large = OneWay(Spent({"forward": 1.0}), launches=4), OneWay(Spent({"forward": 4.0}), launches=1)
        >>> host = _Host(1.0, ahead=True)
        >>> host.waited([small, large], 5.0), host.waited([large, small], 5.0), host.waited([large, large], 8.0)
        (3.0, 0.0, 0.0)

        Exchanges change nothing of that: streams wait for them, hosts do not, and so get as far ahead as without; what
        they cost a host is launching them (`launches.EXCHANGE`).
        """
        if not self.ahead:
            return sum(self.launch * way.launches for way in ways)
        host = device = 0.0
        for way in ways:
            host += self.launch * way.launches
            device = max(device + way.spent.total, host)
        return max(0.0, device - computing)


def _beside(time: LayerTime, streams: Streams, *, hides: bool) -> LayerTime:
    """A layer of the last backward as reductions find it: nothing of it where they wait for all, and all in one where
    nothing else runs beside computing.
    """
    if not hides:
        return LayerTime(0.0)
    return time if streams.overlaps else LayerTime(sum(time))


def _pass(spent: Spent, ways: Sequence[OneWay], streams: Streams, host: _Host) -> None:
    """One micro-batch through a stage: what stands in the way, what is exposed of what runs beside, and what it waits
    for the host. Copies to and from the host run beside all of that (Ren 2021, section 4.1).

    Two layers of 4 seconds, of whose gathers the first is waited for; of 12 seconds of copies 3 are left:

    >>> way, spent = OneWay(Spent({"forward": 4.0}), gather=1.0, copied=6.0), Spent()
    >>> _pass(spent, [way, way], Streams(), _Host(0.0, ahead=True))
    >>> spent.parts
    {'forward': 8.0, 'state': 1.0, 'offload': 3.0}
    """
    for way in ways:
        spent.add_all(way.spent.parts)
    passed = one_pass([time for way in ways for time in way.times], streams)
    spent.add("state", passed.exposed)
    spent.add("launch", host.waited(ways, passed.seconds))
    spent.add("offload", max(0.0, sum(way.copied for way in ways) - spent.total))
