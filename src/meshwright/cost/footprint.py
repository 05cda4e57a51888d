"""From the bytes that a plan allocates to those that a device is asked for, each as a range, and the chance that they
are too many.

    allocated   what tensors take: the computed peak, give or take what the model of memory is known to miss by
    reserved    what the allocator holds for it: more, by rounding and by gaps that nothing fits into
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

    def chance_above(self, limit: float) -> float:
        """The probability that it is more than a limit.

        >>> round(Range(70e9, 80e9).chance_above(80e9), 2), Range(70e9, 70e9).chance_above(70e9)
        (0.05, 0.0)
        """
        spread = (self.high - self.low) / (2 * _TAIL)
        if spread <= 0:
            return float(self.middle > limit)
        return 1 - NormalDist(self.middle, spread).cdf(limit)


class Footprint(NamedTuple):
    """What a device is asked for."""

    allocated: Range
    reserved: Range
    device: Range


def footprint(peak: float, reached: DeviceConstants) -> Footprint:
    """The ranges of a computed peak, in bytes.

    >>> found = footprint(10e9, DeviceConstants(spread=0.05, fragmentation=(1.0, 1.1), context=(1e9, 2e9)))
    >>> found.allocated
    Range(low=9500000000.0, high=10500000000.0)
    >>> found.reserved, found.device
    (Range(low=9500000000.0, high=11550000000.0), Range(low=10500000000.0, high=13550000000.0))
    """
    allocated = Range(peak * (1 - reached.spread), peak * (1 + reached.spread))
    low, high = reached.fragmentation
    reserved = Range(allocated.low * low, allocated.high * high)
    return Footprint(allocated, reserved, Range(reserved.low + reached.context[0], reserved.high + reached.context[1]))
