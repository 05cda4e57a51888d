"""The seconds of one layer of a plan on one rank: what stands in its way, what runs beside it, what ends a step.

Communication between a layer's operators (tensor, sequence, expert) stands in its way but for what `hiding` says;
gathers of parameters and reductions of gradients run beside computing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.cost.activations import layer_activations
from meshwright.cost.blocks import Block
from meshwright.cost.casts import narrow_of
from meshwright.cost.compute import (
    Load,
    Seconds,
    layer_load,
    layer_seconds,
    loads_of,
    machines,
    operator_seconds,
)
from meshwright.cost.flows import Flow, Purpose
from meshwright.cost.hiding import RowWork, waited
from meshwright.cost.launches import EXCHANGE
from meshwright.cost.newton_schulz import dealt_out, orthogonal_seconds
from meshwright.cost.offload import host_link
from meshwright.cost.optimizers import optimizer_bytes
from meshwright.cost.overlap import LayerTime
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.cost.slices import stepped_by
from meshwright.cost.states import sharding_of
from meshwright.cost.uses import Storage
from meshwright.cost.volumes import has_backward, held_by, kept_flows, pieces_of, row_flows, widths_of
from meshwright.cost.wires import Wires
from meshwright.model.operators import Embedding

PART_OF: dict[Purpose, str] = {
    "tensor": "tensor",
    "loss": "tensor",
    "context": "sequence",
    "sequence": "sequence",
    "expert": "expert",
    "statistics": "state",
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
    launches: float = 0.0
    """Kernels, weighed by what each takes of the host (`launches`)."""
    pieces: int = 1
    """What is gathered or reduced one after the other (`KernelSet.gathers_matrices`)."""

    @property
    def times(self) -> list[LayerTime]:
        """As the streams want it: computing is taken to be spread evenly over the pieces."""
        return [LayerTime(*(time / self.pieces for time in (self.spent.total, self.gather, self.reduce)))] * self.pieces


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
    layers = dealt_out(placement.recipe, len(block.names))
    key = ("layer", placement.sharded_alike(block), wires.lie(block.group), layers)
    return placement.calibrated(key, lambda: _time_layer(placement, wires, block))


def _time_layer(placement: Placement, wires: Wires, block: Block) -> LayerSeconds:
    forward, backward, weight = compute_layer(placement, wires, block)
    kept = keep_layer(placement, wires, block, (forward, backward))
    return LayerSeconds(forward, backward, weight, *kept)


def compute_layer(placement: Placement, wires: Wires, block: Block) -> tuple[OneWay, OneWay, float]:
    """What one layer computes and exchanges for a micro-batch, both ways, and of that the gradients of the weights."""
    forward, backward, weight = OneWay(), OneWay(), 0.0
    calls = 1 if placement.storage(block.group).on_cpu else EXCHANGE
    for work in _rows(placement, block):
        forward.launches += work.load.launches.forward
        backward.launches += work.load.launches.backward
        forward.spent.add("forward", work.computing.forward)
        backward.spent.add_all({"recompute": work.computing.recompute, "backward": work.computing.backward})
        weight += work.computing.weight
        for flow, time in waited(placement, wires, block, work):
            way = forward if flow.when == "forward" else backward
            way.spent.add(PART_OF[flow.purpose], time)
            way.launches += calls * flow.times
    return forward, backward, weight


class KeptSeconds(NamedTuple):
    """What one layer's states take at the end of a step, as in LayerSeconds."""

    once: tuple[Flow, ...]
    optimizer: Spent
    update: Spent


def keep_layer(placement: Placement, wires: Wires, block: Block, ways: tuple[OneWay, OneWay]) -> KeptSeconds:
    """What one layer's states take: adds what they take of each micro-batch to both ways."""
    (forward, backward), update, once = ways, Spent(), list[Flow]()
    forward.pieces = backward.pieces = pieces_of(placement, block)
    backward.spent.add("backward", adding_up(placement, block) if has_backward(block) else 0.0)
    for way, copied in zip(ways, copying(placement, block), strict=True):
        way.spent.add("state", copied)
    for flow in kept_flows(placement, block):
        way, time = forward if flow.when == "forward" else backward, wires.flow_seconds(block.group, flow)
        if flow.when == "reduce":
            once.append(flow)
        elif flow.when == "update":
            update.add(PART_OF[flow.purpose], time)
        elif flow.purpose == "shard" and flow.kind == "all_gather":
            way.gather += time
        else:
            way.reduce += time
    return KeptSeconds(tuple(once), _step(placement, block, ways), update)


def _rows(placement: Placement, block: Block) -> Iterator[RowWork]:
    """The rows of a block, with their computing on the slowest kind of device: exchanges make the others wait."""
    storage, devices = placement.storage(block.group), machines(placement, block.group)
    for (row, _, shares), flows in zip(placement.row_shares(block), row_flows(placement, block), strict=True):
        loads = _loads(placement, block, shares, storage)
        load = layer_load(shares, loads, row.recompute)
        computing = _computing(placement, block.group, loads, storage)
        kinds = (layer_seconds(load, each) for each in computing)
        yield RowWork(row, shares, flows, Seconds(*map(max, zip(*kinds, strict=True))), devices, load)


def _loads(placement: Placement, block: Block, shares: list[Share], storage: Storage) -> tuple[Load, ...]:
    """Of operators that blocks share (`Placement.shares`) once."""
    narrow = narrow_of(placement.recipe.precision, block.stack.operators)
    key = "loads", storage, narrow, tuple(map(id, shares))
    return placement.once(key, lambda: loads_of(shares, placement.kernels, storage, narrow))


def _computing(placement: Placement, group: str, loads: tuple[Load, ...], storage: Storage) -> list[list[Seconds]]:
    """Of each kind of device of a group."""

    def made() -> list[list[Seconds]]:
        devices = machines(placement, group)
        return [[operator_seconds(load, storage, device) for load in loads] for device in devices]

    return placement.calibrated(("computing", id(loads), group), made)


def adding_up(placement: Placement, block: Block) -> float:
    """Seconds to add a micro-batch's gradients to the step's: each is read, and what it is added to read and written,
    by a kernel of its own, but for those that a product adds. Where no buffer is kept for them, one micro-batch's
    gradients are the step's. No product gives that of a table of embeddings: zeros are written, and few rows of these.

    In bf16, added up in float32: 2 + 2 x 4 bytes a parameter at the memory's bandwidth.

    >>> import meshwright as mw
    >>> from meshwright.cost.calibration import IDEAL
    >>> from meshwright.plan.rules import Inputs
    >>> given = mw.model("gpt2"), mw.cluster("2xh100"), mw.recipe(global_batch=4, sequence=8)
    >>> placement = Placement(Inputs(mw.uniform_plan(*given, zero=1), *given), IDEAL)
    >>> block, memory = placement.block_of["decoder.0"], given[1].devices["h100"].memory_bandwidth
    >>> adding_up(placement, block) == 10 * block.stack.parameters / memory
    True
    """
    kernels, widths, mesh = placement.kernels, widths_of(placement), placement.group(block.group).mesh
    adds, moved = placement.plan.micro_batches > 1 or kernels.keeps_gradients, 0.0
    for (row, held), (_, _, shares) in zip(held_by(placement, block), placement.row_shares(block), strict=True):
        sharding = sharding_of(placement.state_row(block, row), mesh)
        ways = sharding.ways if sharding.scatters(placement.plan.execution.sync) else 1
        tables = sum(
            each.operator.parameters() for each in shares if isinstance(each.operator, Embedding) and each.learns
        )
        numbers = adds * (tables if kernels.adds_in_place else held.learning)
        moved += numbers / ways * (widths.element + 2 * widths.gradient) + tables * widths.element
    return max(moved / machine.streamed * machine.slowdown for machine in machines(placement, block.group))


def copying(placement: Placement, block: Block) -> tuple[float, float]:
    """Seconds to copy what a state gathers and what it scatters after each micro-batch, forward and backward.

    A copy in bf16 of all parameters each way, and one of their gradients to float32: 2 + 2, and 2 + 2 + 2 + 4 bytes.

    >>> import meshwright as mw
    >>> from meshwright.cost.calibration import IDEAL
    >>> from meshwright.plan.rules import Inputs
    >>> given = mw.model("gpt2"), mw.cluster("2xh100"), mw.recipe(global_batch=4, sequence=8)
    >>> placement = Placement(Inputs(mw.uniform_plan(*given, zero=3), *given), IDEAL)
    >>> block, memory = placement.block_of["decoder.0"], given[1].devices["h100"].memory_bandwidth
    >>> [round(time * memory / block.stack.parameters, 6) for time in copying(placement, block)]
    [4.0, 10.0]
    """
    kernels, widths, there, back = placement.kernels, widths_of(placement), 0.0, 0.0
    for flow in kept_flows(placement, block):
        if flow.purpose == "shard" and flow.when in ("forward", "backward"):
            gathers = flow.kind == "all_gather"
            moved = 2 * flow.bytes if gathers else flow.bytes * (1 + widths.element / widths.gradient)
            moved *= flow.times * (kernels.gather_copies if gathers else kernels.reduce_copies)
            there, back = there + moved * (flow.when == "forward"), back + moved * (flow.when == "backward")
    slowest = max(machine.slowdown / machine.streamed for machine in machines(placement, block.group))
    return there * slowest, back * slowest


def _step(placement: Placement, block: Block, ways: tuple[OneWay, OneWay]) -> Spent:
    """The optimizer, bound by memory but for Muon's products: the device's, or the host's where its states are there.
    Adds what offload copies in each micro-batch to both ways: gradients that are scattered after each go down beside
    backward.
    """
    mesh, widths, spent = placement.group(block.group).mesh, widths_of(placement), Spent()
    host, moved = host_link(placement, block.group), 0.0
    for (row, held), stepped in zip(held_by(placement, block), stepped_by(placement, block), strict=True):
        sharding = sharding_of(placement.state_row(block, row), mesh)
        learning = held.learning / sharding.ways
        streamed = optimizer_bytes(placement.recipe, stepped.own, stepped.ways)
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
    slowest = zip(machines(placement, block.group), orthogonal_seconds(placement, block), strict=True)
    spent.add("optimizer", max((moved / each.streamed + products) * each.slowdown for each, products in slowest))
    if host is not None and any(row.offload.activations for row, _ in block.rows()):
        for way in ways:
            way.copied += layer_activations(placement, block).away / host.bandwidth
    return spent
