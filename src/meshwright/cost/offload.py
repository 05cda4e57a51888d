"""What it costs to keep states and activations in the host's memory: copies over its link, and its own optimizer.

Ren 2021 (ZeRO-Offload): gradients go down and parameters come up once a step, and the host steps the optimizer, bound
by its memory. Activations go down after their layer's forward and come back before its backward, beside computing; a
layer's parameters come up before each of its turns, as gathered ones do.
"""

from typing import NamedTuple

from meshwright.cost.placement import Placement


class HostLink(NamedTuple):
    """What one device gets of its host."""

    bandwidth: float
    """Bytes per second to the host's memory, each way."""
    memory_bandwidth: float | None
    """Bytes per second of the host's own memory, divided among its devices. Where the cluster does not say, the host
    steps its optimizer at the rate of the link, the slower of both in every machine of the catalogue that says both.
    """

    def step_seconds(self, gradients: float, parameters: float, streamed: float) -> float:
        """Gradients down, the optimizer, parameters up: bytes, and what the optimizer reads and writes.

        >>> HostLink(10e9, 20e9).step_seconds(10e9, 5e9, 40e9)
        3.5
        """
        return (gradients + parameters) / self.bandwidth + streamed / (self.memory_bandwidth or self.bandwidth)


def host_link(placement: Placement, group: str) -> HostLink | None:
    """The slowest host of a group's pools; none where the cluster says nothing of one."""
    cluster, found = placement.inputs.cluster, []
    for pool, _ in placement.pools(group):
        if pool.host is None:
            return None
        devices, link = pool.levels[0].size, cluster.links[pool.host.link]
        ways = devices if pool.host.cards is None else pool.host.cards
        own = pool.host.memory_bandwidth
        found.append(HostLink(link.bandwidth * min(1.0, ways / devices), own / devices if own else None))
    slowest = min(found, key=lambda each: each.bandwidth)
    own_rates = [each.memory_bandwidth for each in found if each.memory_bandwidth is not None]
    return HostLink(slowest.bandwidth, min(own_rates, default=None))
