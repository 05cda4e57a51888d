"""What of a layer's own exchanges hides behind its own computing.

Three are made so that they can, where the backend runs both at once and `execution.overlap` says so:

    tensor   An exchange is cut into pieces, one of as many as ranks, each beside the product of another (Wang 2023,
             "Overlap Communication with Dependent Computation via Decomposition", section 3).
    weights  The gradient of a matrix's input is summed beside the product for that of its weight, and what is gathered
             again for the latter beside the product for the former: of a matrix cut by columns. One cut by rows has
             neither: its output's gradient is gathered before both products (Megatron-LM, core/tensor_parallel/
             layers.py, LinearWithGradAccumulationAndAsyncCommunication, RowParallelLinear; Korthikanti 2022, table 4:
             backward of a layer takes 1.55 times its forward, where as many exchanges as forward would be 2).
    context  A rank passes keys and values on while it attends to those at hand (Liu 2023, "Ring Attention with
             Blockwise Transformers", section 3); the last it attends to without a message.

All others stand between operators of one micro-batch that wait for each other.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from meshwright.cost.blocks import Block
from meshwright.cost.compute import LayerLoad, Machine, Seconds, operator_seconds
from meshwright.cost.flows import Beside, Flow, When, roles_of
from meshwright.cost.overlap import beside
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.cost.wires import Wires
from meshwright.model.operators import Attention, Linear
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
    load: LayerLoad


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
        rings = iter(_cores(placement, block, work, when) if "context" in overlap and roles.ring else ())
        for flow, time in timed:
            if flow.purpose == "context" and "context" in overlap:
                yield flow, ring_left(time, next(rings), roles.ring_size, placement.calibration.contention)
            elif flow.beside and "weights" in overlap and not cut:
                product = _product(placement, block, work, flow.beside)
                yield flow, product_left(time, product, placement.calibration.contention)
            else:
                yield flow, time * stays if flow.purpose == "tensor" else time


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


def product_left(exchanged: float, computing: float, contention: float) -> float:
    """Seconds that stay of an exchange beside a product: what is longer than it, and what it loses to the exchange
    meanwhile.

    >>> product_left(4.0, computing=10.0, contention=0.0), product_left(14.0, computing=10.0, contention=0.0)
    (0.0, 4.0)
    """
    return max(0.0, float(beside(computing, exchanged, contention)) - computing) if exchanged else 0.0


def _product(placement: Placement, block: Block, work: RowWork, wanted: Beside) -> float:
    """The seconds of a matrix's product for one gradient. Where matrices that read the same are one
    (`KernelSet.joins`), that is the product of all of them.
    """
    places = [place for place, share in enumerate(work.shares) if share.matrix == wanted.matrix]
    if placement.kernels.joins:
        after = range(places[0] + 1, len(work.shares))
        places += takewhile(lambda place: _reads_the_same(work.shares[place]), after)
    return sum(_seconds(placement, block, work, place, wanted.gradient) for place in places)


def _reads_the_same(share: Share) -> bool:
    """Whether a matrix follows that reads what the one before read."""
    return isinstance(share.operator, Linear) and share.inside and not (share.fresh or share.enters or share.leaves)


def _seconds(placement: Placement, block: Block, work: RowWork, place: int, what: str) -> float:
    """Of one operator, on the slowest of the row's machines."""
    storage, load = placement.storage(block.group), work.load.loads[place]
    times = (operator_seconds(load, storage, machine) for machine in work.machines)
    return float(max(getattr(time, what) for time in times))


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
    what = "backward" if when == "backward" else "forward"
    for place, share in enumerate(work.shares):
        if isinstance(share.operator, Attention) and (share.passes or when == "forward"):
            again = when != "recompute" or work.load.again[place]
            yield again * _seconds(placement, block, work, place, what)
