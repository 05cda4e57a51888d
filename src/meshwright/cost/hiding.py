"""What of a layer's own exchanges hides behind its own computing.

Three are made so that they can, where the backend runs both at once and `execution.overlap` says so:

    tensor   An exchange is cut into pieces, one of as many as ranks, each beside the product of another (Wang 2023,
             "Overlap Communication with Dependent Computation via Decomposition", section 3).
    weights  The gradient of a matrix's input is summed beside the product for that of its weight (Megatron-LM's
             LinearWithGradAccumulationAndAsyncCommunication; Korthikanti 2022, table 4: backward of a layer takes 1.55
             times its forward, where twice the computing and as many exchanges would be 2).
    context  A rank passes keys and values on while it attends to those at hand (Liu 2023, "Ring Attention with
             Blockwise Transformers", section 3); the last it attends to without a message.

All others stand between operators of one micro-batch that wait for each other.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.cost.blocks import Block
from meshwright.cost.compute import Machine, Seconds, layer_load, layer_seconds
from meshwright.cost.flows import Flow, When, roles_of
from meshwright.cost.launches import Launches
from meshwright.cost.overlap import beside
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.cost.wires import Wires
from meshwright.model.operators import Attention
from meshwright.plan.spec import Row

WAYS: tuple[When, ...] = ("forward", "recompute", "backward")


class RowWork(NamedTuple):
    """One row of a block for one micro-batch."""

    row: Row
    shares: Sequence[Share]
    flows: Sequence[Flow]
    computing: Seconds
    """On the slowest of its machines."""
    machines: Sequence[Machine]
    launches: Launches


def waited(placement: Placement, wires: Wires, block: Block, work: RowWork) -> Iterator[tuple[Flow, float]]:
    """Each of a row's exchanges, with the seconds of it that computing waits for."""
    overlap = placement.plan.execution.overlap if placement.overlaps(block.group) else ()
    roles = roles_of(work.row, placement.group(block.group).mesh)
    for when in WAYS:
        timed = [(flow, wires.flow_seconds(block.group, flow)) for flow in work.flows if flow.when == when]
        exchanged = sum(time for flow, time in timed if flow.purpose == "tensor")
        cut = exchanged and "tensor" in overlap
        hidden, computing = placement.calibration.hidden, getattr(work.computing, when)
        stays = tensor_left(exchanged, computing, roles.pieces, hidden) / exchanged if cut else 1.0
        late = [time for flow, time in timed if "weights" in overlap and not cut and _is_beside_weights(flow)]
        left = weights_left(sum(late), work.computing.weight, placement.calibration.contention)
        slow = left / sum(late) if sum(late) else stays
        rings = iter(_cores(placement, block, work, when) if "context" in overlap and roles.ring else ())
        for flow, time in timed:
            if flow.purpose == "context" and "context" in overlap:
                yield flow, ring_left(time, next(rings), roles.ring_size, placement.calibration.contention)
            else:
                yield flow, time * (slow if _is_beside_weights(flow) else stays) if flow.purpose == "tensor" else time


def tensor_left(exchanged: float, computing: float, pieces: int, hidden: float = 1.0) -> float:
    """Seconds that stay of exchanges in so many pieces: one piece, what is longer than computing, and of the rest all
    but the share that is `hidden` in practice (pieces are launched late, and slow the products that they run beside).

    >>> tensor_left(4.0, computing=10.0, pieces=4), tensor_left(14.0, computing=10.0, pieces=4)
    (1.0, 6.5)
    >>> tensor_left(4.0, computing=10.0, pieces=4, hidden=0.5)
    2.5
    """
    beside = min(exchanged, computing)
    return exchanged - beside * hidden * (1 - 1 / pieces)


def _is_beside_weights(flow: Flow) -> bool:
    """Sums of inputs' gradients, scattered or not; what is gathered the next product waits for."""
    return flow.purpose == "tensor" and flow.when == "backward" and flow.kind in ("all_reduce", "reduce_scatter")


def weights_left(exchanged: float, computing: float, contention: float) -> float:
    """Seconds that stay of exchanges beside products for weights' gradients: what is longer than these, and what they
    lose to the exchange meanwhile.

    >>> weights_left(4.0, computing=10.0, contention=0.0), weights_left(14.0, computing=10.0, contention=0.0)
    (0.0, 4.0)
    """
    return max(0.0, float(beside(computing, exchanged, contention)) - computing) if exchanged else 0.0


def ring_left(sent: float, attention: float, ranks: int, contention: float) -> float:
    """Seconds by which a ring is longer than its attention alone: of as many equal blocks as ranks, each but the last
    has a message beside it.

    Four blocks of 2 seconds, and three messages of 1, or of 3:

    >>> ring_left(3.0, attention=8.0, ranks=4, contention=0.0), ring_left(9.0, attention=8.0, ranks=4, contention=0.0)
    (0.0, 3.0)
    """
    steps, block = ranks - 1, attention / ranks
    return steps * (float(beside(block, sent / steps, contention)) - block)


def _cores(placement: Placement, block: Block, work: RowWork, when: When) -> Iterator[float]:
    """The seconds of each attention core that has a ring, in the order of the rings."""
    storage = placement.storage(block.group)
    for share in work.shares:
        if isinstance(share.operator, Attention) and (share.passes or when == "forward"):
            load = layer_load([share], work.row.recompute, placement.kernels, storage)
            yield max(getattr(layer_seconds(load, storage, machine), when) for machine in work.machines)
