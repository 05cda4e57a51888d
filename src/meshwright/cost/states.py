"""What a row's states keep and move: parameters, gradients and optimizer states over the ranks that hold equal ones.

Rajbhandari 2020 (ZeRO), sections 5 and 7; Zhao 2023 (FSDP), section 3; the table of states in DESIGN.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshwright.cost.flows import Flow, When, active
from meshwright.cost.shares import Share
from meshwright.model.operators import Experts
from meshwright.plan.spec import Row


class Parameters(NamedTuple):
    """Numbers that one rank computes with, before a state shards them."""

    dense: float = 0.0
    """Learning, and equal on all ranks that the row does not split them over."""
    experts: float = 0.0
    """Learning, of the experts that this rank holds."""
    frozen: float = 0.0
    partial: float = 0.0
    """Of the dense ones: those whose gradient each tensor rank has a part of."""
    copied: float = 0.0
    """Of the dense ones: those of KV heads that several tensor ranks hold, each with a part of their gradient."""

    @property
    def learning(self) -> float:
        """Those that have gradients and optimizer states."""
        return self.dense + self.experts

    @property
    def all(self) -> float:
        """Learning and frozen."""
        return self.learning + self.frozen

    def plus(self, other: "Parameters") -> "Parameters":
        """Both together."""
        return Parameters(*(one + more for one, more in zip(self, other, strict=True)))


def count_parameters(shares: Iterable[Share]) -> Parameters:
    """The parameters of a rank's operators."""
    dense = experts = frozen = partial = copied = 0.0
    for share in shares:
        numbers = share.operator.parameters()
        if not share.learns:
            frozen += numbers
        elif isinstance(share.operator, Experts):
            experts += numbers
        else:
            dense += numbers
            partial += share.partial
            copied += share.copied
    return Parameters(dense, experts, frozen, partial, copied)


class Sharding(NamedTuple):
    """The axes of a row by what they do to its parameters, and the ranks of the shard group."""

    state: str | None
    shard: tuple[str, ...]
    """The shard group: parameters are gathered over it."""
    reduce: tuple[str, ...]
    """Of the shard group: the ranks whose gradients add up. Those of `copy` are equal already."""
    replicas: tuple[str, ...]
    """Outside of the shard group: ranks whose gradients add up."""
    experts: tuple[str, ...]
    """Ranks with other experts, but the same dense parameters of a part."""
    tensor: tuple[str, ...]
    """Ranks that share the gradient of `Parameters.partial`."""
    ways: int
    copied: int = 1
    """Of the shard group: ranks that have equal gradients, so that each reduces a part of them alone."""

    def kept(self, *states: str) -> int:
        """How many ways something is sharded that these states shard."""
        return self.ways if self.state in states else 1

    def scatters(self, sync: str) -> bool:
        """Whether gradients are reduced and scattered after each micro-batch, not once a step (`execution.sync`)."""
        return self.state in ("zero2", "zero3") and sync == "each"


def sharding_of(row: Row, mesh: Mapping[str, int]) -> Sharding:
    """How a row shards its parameters on a mesh.

    >>> hsdp = sharding_of(Row(span="a", roles={"node": "dp", "gpu": "dp/zero3"}), {"node": 2, "gpu": 8})
    >>> hsdp.state, hsdp.shard, hsdp.replicas, hsdp.ways
    ('zero3', ('gpu',), ('node',), 8)
    """
    shard = active(row.state_axes(), mesh)
    summed = active(row.axes("dp", "cp", "ulysses"), mesh)
    return Sharding(
        state=row.state if shard else None,
        shard=shard,
        reduce=tuple(axis for axis in shard if axis in summed),
        replicas=tuple(axis for axis in summed if axis not in shard),
        experts=active(row.axes("ep"), mesh),
        tensor=active(row.axes("tp+sp"), mesh) or active(row.axes("tp"), mesh),
        ways=math.prod(mesh[axis] for axis in shard),
        copied=math.prod(mesh[axis] for axis in shard if axis not in summed),
    )


class Widths(NamedTuple):
    """Bytes of a parameter as it is computed with, and of its gradient."""

    element: float
    gradient: float


def state_flows(
    sharding: Sharding, held: Parameters, widths: Widths, *, sync: str, backward: bool, again: bool
) -> list[Flow]:
    """The collectives of one layer's states.

    `backward`: the layer has one; `again`: zero3 gathers once more for it. Gradients of what is equal over `copy` axes
    are equal, and move nowhere. Replicas of a shard group add their shards up once a step. Ten parameters of 2 bytes,
    whose gradients have 4, over eight ranks:

    >>> def moved(role: str) -> list[tuple[str, float, str]]:
    ...     sharding = sharding_of(Row(span="a", roles={"x": role}), {"x": 8})
    ...     flows = state_flows(sharding, Parameters(10.0), Widths(2, 4), sync="each", backward=True, again=True)
    ...     return [(flow.kind, flow.bytes, flow.when) for flow in flows]
    >>> moved("dp")
    [('all_reduce', 40.0, 'reduce')]
    >>> moved("dp/zero2")
    [('reduce_scatter', 40.0, 'backward'), ('all_gather', 20.0, 'update')]
    >>> moved("dp/zero3")
    [('all_gather', 20.0, 'forward'), ('all_gather', 20.0, 'backward'), ('reduce_scatter', 40.0, 'backward')]
    """
    flows: list[Flow] = []
    if sharding.state == "zero3":
        gathered = Flow("shard", "all_gather", sharding.shard, widths.element * held.all, "forward")
        flows += [gathered] + [gathered._replace(when="backward")] * (backward and again)
    if held.learning:
        flows += _reductions(sharding, held, widths, sync)
        if sharding.state in ("zero1", "zero2"):
            flows.append(Flow("shard", "all_gather", sharding.shard, widths.element * held.learning, "update"))
    return [flow for flow in flows if flow.axes and flow.bytes]


def owner_flows(sharding: Sharding, held: Parameters, widths: Widths, owned: float) -> list[Flow]:
    """The collectives of one layer's states where each tensor has one owner under zero1: all ranks sum all gradients,
    and `owned` of the layer's tensors are broadcast, or runs of tensors that one rank owns.

    >>> sharding = sharding_of(Row(span="a", roles={"x": "dp/zero1"}), {"x": 8})
    >>> [(flow.kind, flow.bytes, flow.times) for flow in owner_flows(sharding, Parameters(10.0), Widths(2, 4), 5)]
    [('all_reduce', 40.0, 1), ('broadcast', 4.0, 5)]
    """
    times = max(1, round(owned))
    summed = Flow(
        "gradient", "all_reduce", (*sharding.replicas, *sharding.reduce), widths.gradient * held.learning, "reduce"
    )
    sent = Flow("shard", "broadcast", sharding.shard, widths.element * held.learning / times, "update", times)
    return [flow for flow in (summed, sent) if flow.axes and flow.bytes]


def _reductions(sharding: Sharding, held: Parameters, widths: Widths, sync: str) -> list[Flow]:
    when: When = "backward" if sharding.scatters(sync) else "reduce"
    left = widths.gradient / sharding.ways
    flows = [Flow("shard", "reduce_scatter", sharding.reduce, widths.gradient / sharding.copied * held.learning, when)]
    if sharding.experts:
        flows.append(
            Flow("gradient", "all_reduce", (*sharding.replicas, *sharding.experts), left * held.dense, "reduce")
        )
        flows.append(Flow("gradient", "all_reduce", sharding.replicas, left * held.experts, "reduce"))
    else:
        flows.append(Flow("gradient", "all_reduce", sharding.replicas, left * held.learning, "reduce"))
    parts = (held.partial, held.copied)  # copies are summed over some of the tensor ranks
    return flows + [Flow("gradient", "all_reduce", sharding.tensor, left * part, "reduce") for part in parts]
