"""Global batches to choose from: a range, and which of it are tried."""

import re
from typing import NamedTuple

from meshwright.errors import PlanError
from meshwright.units import MAX_COUNT

MOST_TRIED = 64
"""Batches of a range with a step that are searched one by one."""
_WRITTEN = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*(?::\s*(\d+)\s*)?")


class Batches(NamedTuple):
    """From `low` to `high`, both included, by steps of `step`; none: batches that many degrees divide."""

    low: int
    high: int
    step: int | None = None

    def __str__(self) -> str:
        return f"{self.low}..{self.high}" + (f":{self.step}" if self.step else "")

    def tried(self, devices: int) -> list[int]:
        """The batches to search: each of the steps; or the ends, powers of two, three times powers of two, and the
        largest that all devices divide.

        >>> Batches(256, 1024).tried(64), Batches(90, 200).tried(24), Batches(32, 64, 16).tried(8)
        ([256, 384, 512, 768, 1024], [90, 96, 128, 192, 200], [32, 48, 64])
        """
        if self.step is not None:
            return list(range(self.low, self.high + 1, self.step))
        powers = [odd << shift for odd in (1, 3) for shift in range(self.high.bit_length())]
        found = {self.low, self.high, self.high // devices * devices, *powers}
        return sorted(batch for batch in found if self.low <= batch <= self.high)


def read_batches(given: "str | range | tuple[int, ...] | Batches") -> Batches:
    """'256..1024', '256..1024:64', a range, or (low, high). Raises PlanError.

    >>> read_batches("256..1024:64"), read_batches(range(8, 33, 8))
    (Batches(low=256, high=1024, step=64), Batches(low=8, high=32, step=8))
    """
    if isinstance(given, str):
        written = _WRITTEN.fullmatch(given)
        if written is None:
            raise PlanError(
                f"global_batch: write a number, or a range like '256..1024' or '256..1024:64' (got '{given}')"
            )
        found = Batches(*(None if each is None else int(each) for each in written.groups()))  # type: ignore[arg-type]
    elif isinstance(given, range):
        found = Batches(given.start, given[-1] if given else given.stop - 1, given.step)
    else:
        found = Batches(*given)
    return _checked(found)


def _checked(found: Batches) -> Batches:
    low, high, step = found
    if not 1 <= low <= high <= MAX_COUNT:
        raise PlanError(
            f"global_batch: a range goes up from 1 on, and {found} does not; write '{min(low, high)}..{max(low, high)}'"
        )
    if step is not None and step < 1:
        raise PlanError(f"global_batch: a range has a step from 1 on (got {step})")
    if step is not None and (high - low) // step >= MOST_TRIED:
        wide = -(-(high - low + 1) // MOST_TRIED)
        raise PlanError(
            f"global_batch: {found} has more than {MOST_TRIED} batches to search; take a step of {wide} or more"
        )
    return found
