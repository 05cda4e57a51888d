"""How many equal layers the stages of a pipeline can take, and what that makes a step take at least.

Layers may be dealt to stages, and recomputes to layers, in any parts: of one stage, the most layers within a time and
within a memory are a linear programme of two limits, whose best uses one recompute or two. Where any layer of a stage
recomputes, what the largest of these needs on its way is there once.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from meshwright.search.frontier import Floats


class Recomputed(NamedTuple):
    """A layer under one of its recomputes, on each stage."""

    seconds: Floats
    """What it adds to a stage's time, more than none."""
    bytes: Floats
    """What it adds to a stage's memory; less than none where it is taken off others that were counted for more."""
    again: float
    """What is there once where a layer takes it: bytes."""


class Fill:
    """Stages with so many bytes each, whose layers choose among these: arrays of [..., stages]. `once` is the least of
    what is there once in a stage, whatever its layers take.
    """

    def __init__(self, options: list[Recomputed], room: Floats | float, once: Floats | float = 0.0) -> None:
        self._alone, self._both = [], list[tuple[Floats, ...]]()
        for level in {each.again for each in options}:
            allowed = [each for each in options if each.again <= level]
            left = np.maximum(0.0, room - np.maximum(level, once))
            self._alone += [(1 / each.seconds, _most(left, each.bytes)) for each in allowed]
            self._both += list(_pairs(allowed, left))

    def layers(self, limit: Floats | float) -> Floats:
        """The most layers, or parts of them, that each stage takes within a limit of its time.

        Layers of 2 seconds and 3 bytes, or of 3 seconds and 1 byte, within 12 seconds and 8 bytes:

        >>> fast, small = (Recomputed(np.array([t]), np.array([size]), 0.0) for t, size in ((2.0, 3.0), (3.0, 1.0)))
        >>> Fill([fast, small], 8.0).layers(12.0).round(3).tolist()
        [4.571]
        """
        found = np.max([np.minimum(limit * pace, most) for pace, most in self._alone], axis=0)
        for one_slope, one, other_slope, other in self._both:
            first, second = limit * one_slope + one, limit * other_slope + other
            found = np.maximum(found, np.where((first >= 0) & (second >= 0), first + second, 0.0))
        most: Floats = np.maximum(found, 0.0)
        return most


def _most(room: Floats, size: Floats) -> Floats:
    """How many of a size have room."""
    found: Floats = np.where(size > 0, room / np.where(size > 0, size, 1.0), np.inf)
    return found


def _pairs(options: list[Recomputed], room: Floats) -> Iterator[tuple[Floats, ...]]:
    """Of two that fill both time and memory, how many layers take each: a slope by the limit of time and a rest."""
    for one, other in combinations(options, 2):
        turned = one.seconds * other.bytes - other.seconds * one.bytes
        turned = np.where(turned == 0, np.inf, turned)
        yield other.bytes / turned, -room * other.seconds / turned, -one.bytes / turned, room * one.seconds / turned
