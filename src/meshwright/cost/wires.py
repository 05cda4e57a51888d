"""What the process groups of a plan get of the cluster's links, and how long their collectives take there."""

from meshwright.cost.collectives import TRAFFIC, Network, Traffic, Way, seconds
from meshwright.cost.flows import Flow
from meshwright.cost.moves import pairs
from meshwright.cost.placement import Placement
from meshwright.plan.groups import axis_groups


class Wires:
    """A plan's process groups on the links of its cluster; groups that lie alike are measured once."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.network = Network(placement.inputs.cluster, placement.calibration)

    def flow_seconds(self, group: str, flow: Flow) -> float:
        """All of a flow's equal collectives, one after the other."""
        way, ranks = self.way(group, flow.axes, TRAFFIC[flow.kind])
        return flow.times * seconds(flow.kind, flow.bytes, ranks, way)

    def way(self, group: str, axes: tuple[str, ...], traffic: Traffic) -> tuple[Way, int]:
        """What the slowest process group over some axes gets, and its ranks."""
        found, network = self.placement.group(group), self.network

        def slowest() -> tuple[Way, int]:
            lists = axis_groups(found, axes)
            return network.slowest(lists, traffic), len(lists[0])

        return self.placement.once(("way", self.lie(group), axes, traffic), slowest)

    def lie(self, group: str) -> int:
        """A number that is equal for groups of one mesh that lie alike in the cluster."""
        found, network = self.placement.group(group), self.network

        def number() -> int:
            return self.placement.number((network.pattern(found.devices), tuple(found.mesh.items())))

        return self.placement.once(("lie", group), number)

    def crossing(self, source: str, target: str, size: float) -> float:
        """Seconds of a message of so many bytes for the busiest device, from one group to another."""
        one, other = self.placement.group(source), self.placement.group(target)
        key = ("pairs", self.network.pattern(one.devices + other.devices), one.size)
        way = self.placement.once(key, lambda: self.network.crossing(pairs(one, other)))
        return seconds("p2p", size, 2, way) if size else 0.0
