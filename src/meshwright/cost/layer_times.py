"""The seconds of one layer of a plan on one rank: what stands in its way, what runs beside it, what ends a step.

Communication between a layer's operators (tensor, sequence, expert) stands in its way; gathers of parameters and
reductions of gradients run beside computing. Tensor parallelism may be cut into pieces that hide behind the products
they belong to (Wang 2023, "Overlap Communication with Dependent Computation via Decomposition"): then a piece of it
stays, one of as many as ranks, and what is longer than the computing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from meshwright.cost.blocks import Block
from meshwright.cost.compute import Seconds, layer_seconds, machines, optimizer_bytes
from meshwright.cost.flows import Flow, Purpose
from meshwright.cost.memory import layer_activations
from meshwright.cost.offload import host_link
from meshwright.cost.overlap import LayerTime
from meshwright.cost.placement import Placement
from meshwright.cost.states import sharding_of
from meshwright.cost.volumes import block_flows, has_backward, held_by, widths_of
from meshwright.cost.wires import Wires
from meshwright.plan.spec import Offload, Row

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


@dataclass
class Spent:
    """Seconds by part."""

    parts: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, time: float) -> None:
        """So much more for a part."""
        if time:
            self.parts[part] = self.parts.get(part, 0.0) + time

    def add_all(self, parts: Mapping[str, float], times: float = 1) -> None:
        """So many times all of these."""
        for part, time in parts.items():
            self.add(part, times * time)

    @property
    def total(self) -> float:
        """All parts."""
        return sum(self.parts.values())


@dataclass
class OneWay:
    """One layer for one micro-batch, one way."""

    spent: Spent = field(default_factory=Spent)
    """What stands between its operators."""
    gather: float = 0.0
    reduce: float = 0.0
    copied: float = 0.0
    """Activations and gradients to or from the host, beside computing."""

    @property
    def time(self) -> LayerTime:
        """As the streams want it."""
        return LayerTime(self.spent.total, self.gather, self.reduce)


class LayerSeconds(NamedTuple):
    """One layer on one rank."""

    forward: OneWay
    backward: OneWay
    weight: float
    """Of backward, the gradients of the weights."""
    once: tuple[Flow, ...]
    """Gradients that are reduced once a step."""
    optimizer: Spent
    update: Spent
    """Gathering of the parameters that the optimizer has changed."""


def time_layer(placement: Placement, wires: Wires, block: Block) -> LayerSeconds:
    """One layer of a block, on the slowest kind of device of its group; equal ones of groups that lie alike once."""
    lent_to = id(placement.state_row(block, block.row)) if block.lends else None
    key = ("layer", block.likeness, wires.lie(block.group), lent_to)
    return placement.once(key, lambda: _time_layer(placement, wires, block))


def _time_layer(placement: Placement, wires: Wires, block: Block) -> LayerSeconds:
    computing = _computing(placement, block)
    forward, backward, update, once = OneWay(), OneWay(), Spent(), list[Flow]()
    forward.spent.add("forward", computing.forward)
    backward.spent.add_all({"recompute": computing.recompute, "backward": computing.backward})
    for flow in block_flows(placement, block):
        way, time = forward if flow.when == "forward" else backward, wires.flow_seconds(block.group, flow)
        if flow.when == "reduce":
            once.append(flow)
        elif flow.when == "update":
            update.add(PART_OF[flow.purpose], time)
        elif flow.purpose == "shard" and flow.kind == "all_gather":
            way.gather += time
        elif flow.purpose == "shard":
            way.reduce += time
        else:
            way.spent.add(PART_OF[flow.purpose], time)
    if "tensor" in placement.plan.execution.overlap:
        ranks = placement.ways(block)[0][1].tensor
        _hide_tensor(forward.spent, computing.forward, ranks)
        _hide_tensor(backward.spent, computing.recompute + computing.backward, ranks)
    optimizer = _step(placement, block, (forward, backward))
    return LayerSeconds(forward, backward, computing.weight, tuple(once), optimizer, update)


def _hide_tensor(spent: Spent, computing: float, ranks: int) -> None:
    """Leaves of the exchanges one piece of as many as ranks, and what is longer than computing (Wang 2023, section 3).

    >>> beside, longer = Spent({"tensor": 4.0}), Spent({"tensor": 14.0})
    >>> _hide_tensor(beside, 10.0, 4), _hide_tensor(longer, 10.0, 4)
    (None, None)
    >>> beside.parts, longer.parts
    ({'tensor': 1.0}, {'tensor': 6.5})
    """
    exchanged = spent.parts.get("tensor", 0.0)
    if exchanged:
        spent.parts["tensor"] = max(0.0, exchanged - computing) + min(exchanged, computing) / ranks


def _computing(placement: Placement, block: Block) -> Seconds:
    storage, slowest = placement.storage(block.group), Seconds()
    rows = placement.row_shares(block)
    for machine in machines(placement, block.group):
        here = Seconds()
        for row, _, shares in rows:
            here = here.plus(layer_seconds(shares, row.recompute, placement.kernels, storage, machine))
        slowest = Seconds(*(max(one, other) for one, other in zip(slowest, here, strict=True)))
    return slowest


def _step(placement: Placement, block: Block, ways: tuple[OneWay, OneWay]) -> Spent:
    """The optimizer, bound by memory: the device's, or the host's where its states are there. Adds what offload copies
    in each micro-batch to both ways: gradients that are scattered after each go down beside backward.
    """
    mesh, widths, spent = placement.group(block.group).mesh, widths_of(placement), Spent()
    host, moved = host_link(placement, block.group), 0.0
    for row, held in held_by(placement, block):
        sharding = sharding_of(placement.state_row(block, row), mesh)
        learning = held.learning / sharding.ways
        streamed = optimizer_bytes(placement.recipe, learning)
        if host is not None and row.offload.optimizer:
            gradients = widths.gradient * learning
            if sharding.scatters(placement.plan.execution.sync):
                ways[1].copied += gradients / host.bandwidth
                gradients = 0.0
            spent.add("offload", host.step_seconds(gradients, widths.element * learning, streamed))
        else:
            moved += streamed
        if host is not None and row.offload.parameters:
            for way in ways[: 1 + has_backward(block)]:
                way.gather += widths.element * held.all / sharding.kept("zero3") / host.bandwidth
    spent.add("optimizer", max(moved / each.streamed * each.slowdown for each in machines(placement, block.group)))
    if host is not None and any(row.offload.activations for row, _ in block.rows()):
        for way in ways:
            way.copied += _away(placement, block) / host.bandwidth
    return spent


def _away(placement: Placement, block: Block) -> float:
    """Bytes of a micro-batch's activations that the host keeps: what the device would, were nothing offloaded."""
    parts = {name: _at_home(row) for name, row in block.parts.items()}
    at_home = replace(block, row=_at_home(block.row), parts=parts)
    return layer_activations(placement, at_home).kept - layer_activations(placement, block).kept


def _at_home(row: Row) -> Row:
    return row.model_copy(update={"offload": Offload()})
