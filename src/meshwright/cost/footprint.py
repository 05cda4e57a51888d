"""From the bytes that a plan allocates to those that a device is asked for, each as a range, and the chance that they
are too many.

    allocated   what tensors take: the computed peak, give or take what the model of memory is known to miss by
    reserved    what the allocator holds for it: more, by rounding and by gaps that nothing fits into. States rest where
                they were put; gaps come between what comes and goes in a step
    device      and with the context of the runtime and the buffers of its communicators: what nvidia-smi shows

Low and high are the 5th and 95th percentile; in between a normal distribution is assumed.
"""

from statistics import NormalDist
from typing import NamedTuple

from meshwright.cost.calibration import DeviceConstants
from meshwright.units import show_bytes

_TAIL = NormalDist().inv_cdf(0.95)


class Range(NamedTuple):
    """A low and a high figure, in bytes."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = show_bytes(self.low), show_bytes(self.high)
        return low if low == high else f"{low} to {high}"

    @property
    def middle(self) -> float:
        """Halfway."""
        return (self.low + self.high) / 2

    def plus(self, size: float) -> "Range":
        """So much more."""
        return Range(self.low + size, self.high + size)

    def chance_above(self, limit: float) -> float:
        """The probability that it is more than a limit.

        >>> round(Range(70e9, 80e9).chance_above(80e9), 2), Range(70e9, 70e9).chance_above(70e9)
        (0.05, 0.0)
        """
        if self._spread <= 0:
            return float(self.middle > limit)
        return 1 - NormalDist(self.middle, self._spread).cdf(limit)

    def passed_with(self, chance: float) -> float:
        """The limit that it is more than with a probability.

        >>> round(Range(70e9, 80e9).passed_with(0.05)), Range(70e9, 70e9).passed_with(0.05)
        (80000000000, 70000000000.0)
        """
        return self.middle + NormalDist().inv_cdf(1 - chance) * self._spread

    @property
    def _spread(self) -> float:
        return (self.high - self.low) / (2 * _TAIL)


class Footprint(NamedTuple):
    """What a device is asked for."""

    allocated: Range
    reserved: Range
    device: Range
    needed: Range
    """Of the device, without what the allocator gives back before it runs out."""


class Taken(NamedTuple):
    """What a rank takes of a device's memory at its peak, in bytes, and how."""

    peak: float
    resting: float = 0.0
    """Of the peak: what lies where it was put, step after step."""
    pinned: float = 0.0
    """Large tensors of another time of the step, which fit into no gap that the peak leaves, and whose memory holds
    smaller ones by then."""
    freed: float = 0.0
    """The same where nothing else lies in their memory by then."""
    communicators: int = 0
    overlapping: bool = False
    """True where several micro-batches are in flight."""


def footprint(taken: Taken, reached: DeviceConstants) -> Footprint:
    """The ranges of what a device is asked for.

    >>> reached = DeviceConstants(spread=0.05, fragmentation=(1.0, 1.5), context=(1e9, 2e9), communicator=(0, 1e8))
    >>> found = footprint(Taken(10e9, resting=4e9, communicators=3), reached)
    >>> found.allocated
    Range(low=9500000000.0, high=10500000000.0)
    >>> found.reserved, found.device == found.needed
    (Range(low=9500000000.0, high=13500000000.0), True)
    >>> found.device
    Range(low=10500000000.0, high=15800000000.0)
    """
    moving = taken.peak - taken.resting
    allocated = Range(taken.peak * (1 - reached.spread), taken.peak * (1 + reached.spread))
    low, high = reached.fragmentation_in_flight if taken.overlapping else reached.fragmentation
    least = allocated.low + taken.pinned + (low - 1) * moving
    most = allocated.high + taken.pinned + (high - 1) * moving
    around = [
        context + taken.communicators * each
        for context, each in zip(reached.context, reached.communicator, strict=True)
    ]
    needed = Range(least + around[0], most + around[1])
    return Footprint(allocated, Range(least, most).plus(taken.freed), needed.plus(taken.freed), needed)
