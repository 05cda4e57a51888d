"""What the process groups of a plan get of the cluster's links, and how long their collectives take there."""

import math
from collections.abc import Collection, Mapping
from typing import TypeAlias

import numpy as np

from meshwright.cost.collectives import TRAFFIC, Integers, Network, Traffic, Way, seconds
from meshwright.cost.flows import Flow
from meshwright.cost.moves import pairs
from meshwright.cost.placement import Placement
from meshwright.cost.routing import Routing, copies

Pattern: TypeAlias = tuple[tuple[bytes, ...], tuple[tuple[tuple[str, int], ...], ...]]
"""Devices of groups from the first unit of their pool on, and the groups' meshes."""


class Wires:
    """A plan's process groups on the links of its cluster; groups that lie alike are measured once, also by plans that
    share a `network`.
    """

    def __init__(self, placement: Placement, network: Network | None = None) -> None:
        self.placement = placement
        self.network = network or Network(placement.inputs.cluster, placement.calibration)

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
        slowest = 0.0
        for ranks in self._groups(group, axes):
            nodes = self.network.nodes(ranks)
            peers, inside = tuple(node[0] for node in nodes), max(nodes, key=len)
            sent = copies(routing, nodes)
            for members, count in ((peers, sent.outside), (inside, sent.inside)):
                way = self.network.way(members, "scatter") if len(members) > 1 else Way(math.inf, 0.0)
                slowest = max(slowest, seconds("exchange", size * count, len(members), way))
        return slowest

    def way(self, group: str, axes: tuple[str, ...], traffic: Traffic) -> tuple[Way, int]:
        """What the slowest process group over some axes gets, and its ranks."""
        mesh, known = self.placement.group(group).mesh, self._lying(group)
        ranks = math.prod(mesh[axis] for axis in mesh if axis in axes)
        key = ("way", self.lie(group), axes, traffic)
        return self.placement.calibrated(
            key, lambda: self.network.once((known, axes, traffic), lambda: self._slowest(group, axes, traffic))
        ), ranks

    def _slowest(self, group: str, axes: tuple[str, ...], traffic: Traffic) -> Way:
        return self.network.slowest(self._groups(group, axes), traffic)

    def _groups(self, group: str, axes: tuple[str, ...]) -> Integers:
        """Of the process groups over some axes, one of each kind of lying in the cluster."""

        def unlike() -> Integers:
            return self.network.unlike(axis_table(self._devices(group), self.placement.group(group).mesh, axes))

        return self.placement.once(("groups", self.lie(group), axes), unlike)

    def _devices(self, group: str) -> Integers:
        return self.placement.once(("devices", group), lambda: np.array(self.placement.group(group).devices))

    def lie(self, group: str) -> int:
        """A number that is equal for groups of one mesh that lie alike in the cluster."""
        return self.placement.once(("lie", group), lambda: self.placement.number(self._lying(group)))

    def _lying(self, group: str) -> Pattern:
        return self.placement.once(("lying", group), lambda: self._pattern(group))

    def _pattern(self, *groups: str) -> Pattern:
        """Equal for groups of the same meshes which together lie alike."""
        found = [self.placement.group(name) for name in groups]
        devices = list(map(self._devices, groups))
        ends = [int(end) for each in devices for end in (each.min(), each.max())]
        shift = self.network.shift(int(devices[0][0]), min(ends), max(ends))
        meshes = tuple(tuple(each.mesh.items()) for each in found)
        return tuple((each - shift).tobytes() for each in devices), meshes

    def crossing(self, source: str, target: str, size: float) -> float:
        """Seconds of a message of so many bytes for the busiest device, from one group to another."""
        one, other = self.placement.group(source), self.placement.group(target)
        key = self.placement.once(
            ("pairs", source, target), lambda: self.placement.number(self._pattern(source, target))
        )
        way = self.placement.calibrated(("pairs", key), lambda: self.network.crossing(pairs(one, other)))
        return seconds("p2p", size, 2, way) if size else 0.0


def axis_table(devices: Integers, mesh: Mapping[str, int], axes: Collection[str]) -> Integers:
    """As `plan.groups.axis_groups`: [groups, ranks].

    >>> axis_table(np.arange(8), {"dp": 2, "pp": 2, "tp": 2}, ["dp", "tp"]).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    inside = [place for place, axis in enumerate(mesh) if axis in axes]
    outside = [place for place, axis in enumerate(mesh) if axis not in axes]
    ranks = math.prod(size for axis, size in mesh.items() if axis in axes)
    return devices.reshape(tuple(mesh.values())).transpose(*outside, *inside).reshape(-1, ranks)
