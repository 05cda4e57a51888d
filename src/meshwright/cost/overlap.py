"""What communication a device waits for, and what hides behind computing: two streams, layer by layer.

Sharded parameters are gathered ahead of the layer that wants them, and gradients are reduced while earlier layers run
backward (FSDP: Zhao 2023, section 3.3; bucketed data parallelism: Li 2020, section 3.2.3). Both take their turn on the
links, in the order in which they are asked for. While they run, computing is slower by `contention`: kernels that move
data take multiprocessors and memory bandwidth from those that compute.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

_Seconds = TypeVar("_Seconds", float, NDArray[np.float64])

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
        free = start + slowed(layer.compute, max(0.0, link - start), streams.contention)
        if layer.reduce:
            link = max(link, free) + layer.reduce
    seconds = max(free, link)
    return Passed(seconds, seconds - compute)


def slowed(work: float, beside: float, contention: float) -> float:
    """Seconds of computing that runs slower as long as communication is beside it."""
    return min(work * (1 + contention), work + beside * contention / (1 + contention))


def beside(work: _Seconds, sent: _Seconds, contention: float) -> _Seconds:
    """Seconds of computing and of communication that wait for nothing but each other's end.

    Computing of 4 with communication of 2 beside it; the same, each of these 2 at two thirds of the pace; and with 10:

    >>> [round(float(beside(4.0, sent, contention)), 3) for sent, contention in ((2.0, 0.0), (2.0, 0.5), (10.0, 0.5))]
    [4.0, 4.667, 10.0]
    """
    found: _Seconds = np.maximum(sent, work + contention * np.minimum(work, sent / (1 + contention)))
    return found


class Ready(NamedTuple):
    """One layer of the last backward, in the order in which it runs: its time, and the bytes of its gradients."""

    time: LayerTime
    bytes: float


class Reduction(NamedTuple):
    """The gradients that one stage reduces once a step, in buckets, each when the layers that fill it have run backward
    (Li 2020, section 3.2.3). They take their turn on the links with what the last backward gathers and reduces.
    """

    layers: tuple[Ready, ...]
    seconds: Callable[[float], float]
    """The time of a bucket of so many bytes."""
    backward: float
    """Seconds of the last backward by itself, with all that it waits for."""
    prefetch: int = 1

    def exposed(self, bucket: float) -> float:
        """Seconds from the end of the last backward to that of the last reduction, in buckets of so many bytes.

        Four layers of 1 second and 10 bytes at 10 bytes a second: the first three reductions hide, the last does not.

        >>> four = Reduction((Ready(LayerTime(1), 10),) * 4, seconds=lambda size: size / 10, backward=4)
        >>> four.exposed(bucket=10), four.exposed(bucket=40)
        (1.0, 4.0)
        """
        times, waiting = list[LayerTime](), 0.0
        for layer in self.layers:
            waiting += layer.bytes
            full = waiting // bucket
            waiting -= full * bucket
            times.append(_reducing(layer.time, full * self.seconds(bucket) if full else 0.0))
        if waiting > 0:
            times[-1] = _reducing(times[-1], self.seconds(waiting))
        return max(0.0, one_pass(times, Streams(self.prefetch)).seconds - self.backward)

    @property
    def best_bucket(self) -> float:
        """The bucket, a power of two of MiB, that is exposed least; the largest of those, for the fewest calls.

        >>> layers = (Ready(LayerTime(1), 100 * MIB),) * 4
        >>> Reduction(layers, lambda size: 1e-3 + size / (200 * MIB), backward=4).best_bucket / MIB
        4.0
        """
        total, sizes, size = sum(layer.bytes for layer in self.layers), list[float](), float(MIB)
        while size < 2 * max(total, MIB):
            sizes.append(size)
            size *= 2
        return min(reversed(sizes), key=self.exposed)


def _reducing(time: LayerTime, more: float) -> LayerTime:
    return time._replace(reduce=time.reduce + more)
