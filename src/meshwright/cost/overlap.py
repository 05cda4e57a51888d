"""What communication a device waits for, and what hides behind computing: two streams, layer by layer.

Sharded parameters are gathered ahead of the layer that wants them, and gradients are reduced while earlier layers run
backward (FSDP: Zhao 2023, section 3.3; bucketed data parallelism: Li 2020, section 3.2.3). Both take their turn on the
links, in the order in which they are asked for. While they run, computing is slower by `contention`: kernels that move
data take multiprocessors and memory bandwidth from those that compute.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

MIB = 2**20


class LayerTime(NamedTuple):
    """Seconds of one layer for one micro-batch, one way."""

    compute: float
    """With the communication that stands between its operators."""
    gather: float = 0.0
    """Of its parameters, before it."""
    reduce: float = 0.0
    """Of its gradients, after it."""


class Streams(NamedTuple):
    """How communication runs beside computing."""

    prefetch: int = 1
    """Layers that are gathered ahead: asked for when the layer so many before starts; 0: when its own turn has come."""
    overlaps: bool = True
    """False where everything waits for everything (FSDP2 over gloo)."""
    contention: float = 0.0
    """What computing takes longer, as a share, while communication runs beside it."""


class Passed(NamedTuple):
    """One micro-batch through the layers of a stage, one way."""

    seconds: float
    exposed: float
    """Seconds of them beyond what computing alone takes."""


def one_pass(layers: Sequence[LayerTime], streams: Streams) -> Passed:
    """The time of layers that run one after the other, in the order in which they run.

    Three layers of 4 whose gathers take 1 wait for the first alone; reductions of 3 hide but for the last:

    >>> one_pass([LayerTime(4, gather=1)] * 3, Streams())
    Passed(seconds=13.0, exposed=1.0)
    >>> one_pass([LayerTime(4, reduce=3)] * 3, Streams())
    Passed(seconds=15.0, exposed=3.0)
    >>> one_pass([LayerTime(4, gather=1)] * 3, Streams(overlaps=False)).seconds
    15.0
    """
    compute = sum(layer.compute for layer in layers)
    if not streams.overlaps:
        seconds = compute + sum(layer.gather + layer.reduce for layer in layers)
        return Passed(seconds, seconds - compute)
    free, link = 0.0, 0.0  # when each stream has done what it was asked for
    gathered = [0.0] * len(layers)
    asked = 0
    for place, layer in enumerate(layers):
        if asked == place and layer.gather:  # nobody asked for it ahead
            link = gathered[place] = max(link, free) + layer.gather
        start = max(free, gathered[place])
        for ahead in range(max(asked, place + 1), min(len(layers), place + streams.prefetch + 1)):
            if layers[ahead].gather:
                link = gathered[ahead] = max(link, start) + layers[ahead].gather
        asked = max(asked, place + streams.prefetch + 1)
        free = _slowed(start, layer.compute, link, streams.contention)
        if layer.reduce:
            link = max(link, free) + layer.reduce
    seconds = max(free, link)
    return Passed(seconds, seconds - compute)


def _slowed(start: float, work: float, busy_until: float, contention: float) -> float:
    """The end of computing that runs slower as long as the links are busy."""
    beside = max(0.0, busy_until - start)
    if work * (1 + contention) <= beside:
        return start + work * (1 + contention)
    return start + work + beside * contention / (1 + contention)


class Ready(NamedTuple):
    """One layer of the last backward, in the order in which it runs: its seconds, and the bytes of its gradients."""

    seconds: float
    bytes: float


def exposed_reduction(layers: Iterable[Ready], bucket: float, seconds: Callable[[float], float]) -> float:
    """Seconds from the end of the last backward to that of the last gradient's reduction. Gradients are reduced in
    buckets of so many bytes, each when the layers that fill it have run backward; `seconds` is the time of one bucket.

    Four layers of 1 second and 10 bytes at 10 bytes a second: the first three reductions hide, the last does not.

    >>> exposed_reduction([Ready(1, 10)] * 4, bucket=10, seconds=lambda size: size / 10)
    1.0
    >>> exposed_reduction([Ready(1, 10)] * 4, bucket=40, seconds=lambda size: size / 10)
    4.0
    """
    now = link = waiting = 0.0
    for layer in layers:
        now, waiting = now + layer.seconds, waiting + layer.bytes
        full = waiting // bucket
        if full:
            link, waiting = max(link, now) + full * seconds(bucket), waiting - full * bucket
    if waiting > 0:
        link = max(link, now) + seconds(waiting)
    return max(0.0, link - now)


def best_bucket(layers: Sequence[Ready], seconds: Callable[[float], float]) -> float:
    """The bucket, a power of two of MiB, whose reduction is exposed least; the largest of those, for the fewest calls.

    >>> best_bucket([Ready(1, 100 * MIB)] * 4, lambda size: 1e-3 + size / (200 * MIB)) / MIB
    4.0
    """
    total, sizes, size = sum(layer.bytes for layer in layers), list[float](), float(MIB)
    while size < 2 * max(total, MIB):
        sizes.append(size)
        size *= 2
    return min(reversed(sizes), key=lambda bucket: exposed_reduction(layers, bucket, seconds))
