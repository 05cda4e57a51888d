"""What state-space scans keep and move: in fused kernels, and in transformers' own arithmetic where there are none."""

import math

from meshwright.cost.shares import Share
from meshwright.cost.uses import Storage, Use
from meshwright.model.operators import Scan


def scan(op: Scan, share: Share, storage: Storage) -> Use:
    """Input and output for each channel, steps, and the two projections of the state; steps are one for each head, if
    there are heads (what the kernels of the mamba-ssm package keep).

    Ten positions of eight channels with 4 numbers each, in two bytes: (2 x 8 + 8 + 2 x 4) x 10 x 2.

    >>> from meshwright.model.work import Work
    >>> share = Share(Scan(width=8, state=4), Work(1, 10, 10), learns=True, passes=True)
    >>> scan(Scan(width=8, state=4), share, Storage()).kept
    640
    """
    channels, steps = (op.width * op.heads, op.heads) if op.heads else (op.width, op.width)
    numbers = storage.element * share.work.positions * (2 * channels + steps + 2 * op.state)
    return Use(numbers, numbers)


def scan_eager(op: Scan, share: Share, storage: Storage) -> Use:
    """On CPUs, where transformers has no kernel, operation by operation."""
    if not storage.on_cpu:
        return scan(op, share, storage)
    kept = _by_chunks(op, share, storage) if op.chunk else _by_positions(op, share, storage)
    return Use(kept, 3 * kept)


def _by_positions(op: Scan, share: Share, storage: Storage) -> float:
    """Mamba: in float32 the decay, the input's share and the state of every channel, state and position, the state once
    more in a narrower compute dtype; of each channel and position the input and what the gate multiplies. The gate
    itself is a slice that the convolution's input keeps.
    """
    element, work = storage.element, share.work
    narrow = element < 4
    states, first = op.width * op.state, op.width * op.state * work.samples * (element - 4)
    numbers = states * (12 + narrow * element) + op.width * (4 + 4 * narrow) + 4 * op.state * narrow
    return work.positions * numbers + first + 4 * (2 * states + op.width)


def _by_chunks(op: Scan, share: Share, storage: Storage) -> float:
    """Mamba 2, all in float32, on chunks of which the last is filled up: five tensors of channels (four where float32
    is the compute dtype, and a cast gives the input itself), three of scores within chunks, five of what goes into and
    out of states for every head, four of steps; states at the ends of chunks and between all pairs of them. The gate
    and the norm after it are in float32 too.
    """
    element, work, heads, length = storage.element, share.work, op.heads or 1, op.chunk or 1
    chunks, channels = math.ceil(work.length / length), (op.heads or 1) * op.width
    filled = work.samples * chunks * length
    size = op.width * op.state
    kept = 4 * filled * ((4 + (element < 4)) * channels + heads * (3 * length + 5 * op.state + 4))
    kept += 4 * work.samples * heads * (chunks * size + (chunks + 1) * size + (chunks + 1) ** 2)
    return kept + work.positions * (heads * element + channels * (16 - 4 * element))
