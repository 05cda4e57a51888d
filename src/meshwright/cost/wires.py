"""What the process groups of a plan get of the cluster's links, and how long their collectives take there."""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.collectives import TRAFFIC, Network, Traffic, Way, seconds
from meshwright.cost.flows import Flow
from meshwright.cost.moves import pairs
from meshwright.cost.placement import Placement
from meshwright.cost.routing import Routing, copies
from meshwright.plan.groups import RankLists, axis_groups
from meshwright.plan.spec import Group


class Wires:
    """A plan's process groups on the links of its cluster; groups that lie alike are measured once."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.network = Network(placement.inputs.cluster, placement.calibration)

    def flow_seconds(self, group: str, flow: Flow) -> float:
        """All of a flow's equal collectives, one after the other."""
        if flow.routing and self.placement.plan.execution.dispatch == "nodes":
            return flow.times * self._by_nodes(group, flow.axes, flow.bytes / flow.routing.chosen, flow.routing)
        way, ranks = self.way(group, flow.axes, TRAFFIC[flow.kind])
        return flow.times * seconds(flow.kind, flow.bytes, ranks, way)

    def _by_nodes(self, group: str, axes: tuple[str, ...], size: float, routing: Routing) -> float:
        """Positions of `size` bytes once to each node and on to each rank there, in the slowest process group: what
        leaves a node and what is handed on inside of it are on their way at the same time (DeepSeek-V3, section 3.2.2).
        """
        lists = axis_groups(self.placement.group(group), axes)
        slowest = 0.0
        for ranks in {self.network.pattern(ranks) for ranks in lists}:
            nodes = self.network.nodes(ranks)
            peers, inside = tuple(node[0] for node in nodes), max(nodes, key=len)
            sent = copies(routing, nodes)
            for members, count in ((peers, sent.outside), (inside, sent.inside)):
                way = self.network.way(members, "scatter") if len(members) > 1 else Way(math.inf, 0.0)
                slowest = max(slowest, seconds("exchange", size * count, len(members), way))
        return slowest

    def way(self, group: str, axes: tuple[str, ...], traffic: Traffic) -> tuple[Way, int]:
        """What the slowest process group over some axes gets, and its ranks."""
        lists = self._lists(group, axes)
        key = ("way", self.lie(group), axes, traffic)
        return self.placement.calibrated(key, lambda: self.network.slowest(lists, traffic)), len(lists[0])

    def _lists(self, group: str, axes: tuple[str, ...]) -> RankLists:
        """Of the process groups over some axes, one of each kind of lying in the cluster."""

        def unlike() -> RankLists:
            lists = axis_groups(self.placement.group(group), axes)
            return tuple({self.network.pattern(ranks): ranks for ranks in reversed(lists)}.values())

        return self.placement.once(("lists", self.lie(group), axes), unlike)

    def lie(self, group: str) -> int:
        """A number that is equal for groups of one mesh that lie alike in the cluster."""
        return self.placement.once(("lie", group), lambda: self._pattern(group))

    def _pattern(self, *groups: str) -> int:
        """A number that is equal for groups which together lie alike."""
        found = [self.placement.group(name) for name in groups]
        devices = [
            self.placement.once(("devices", name), partial(_devices, each))
            for name, each in zip(groups, found, strict=True)
        ]
        ends = [int(end) for each in devices for end in (each.min(), each.max())]
        shift = self.network.shift(int(devices[0][0]), min(ends), max(ends))
        meshes = tuple(tuple(each.mesh.items()) for each in found)
        return self.placement.number((tuple((each - shift).tobytes() for each in devices), meshes))

    def crossing(self, source: str, target: str, size: float) -> float:
        """Seconds of a message of so many bytes for the busiest device, from one group to another."""
        one, other = self.placement.group(source), self.placement.group(target)
        key = self.placement.once(("pairs", source, target), lambda: self._pattern(source, target))
        way = self.placement.calibrated(("pairs", key), lambda: self.network.crossing(pairs(one, other)))
        return seconds("p2p", size, 2, way) if size else 0.0


def _devices(group: Group) -> NDArray[np.int64]:
    return np.array(group.devices)
