"""What a rank holds of activations: a run of samples with a run of their positions. Pure arithmetic."""

from typing import NamedTuple

from meshwright.plan.divisions import Division, Run
from meshwright.plan.groups import local_run
from meshwright.plan.spec import Group

Size = tuple[int, int]
"""Samples and positions."""


class Block(NamedTuple):
    """A run of samples with a run of their positions."""

    samples: Run
    positions: Run

    def common(self, other: "Block") -> "Block":
        """What both have."""
        return Block(_common(self.samples, other.samples), _common(self.positions, other.positions))

    @property
    def shape(self) -> Size:
        """Samples and positions."""
        return self.samples[1], self.positions[1]

    @property
    def tokens(self) -> int:
        """How many positions of samples are in it."""
        return self.samples[1] * self.positions[1]

    def within(self, held: "Block") -> tuple[slice, slice]:
        """Where this block lies in an array [samples, positions, ...] of what `held` has.

        >>> Block((4, 2), (6, 3)).within(Block((3, 5), (0, 12)))
        (slice(1, 3, None), slice(6, 9, None))
        """
        first = self.samples[0] - held.samples[0], self.positions[0] - held.positions[0]
        samples, positions = (slice(start, start + count) for start, count in zip(first, self.shape, strict=True))
        return samples, positions


def _common(one: Run, other: Run) -> Run:
    first, end = max(one[0], other[0]), min(sum(one), sum(other))
    return first, max(0, end - first)


def held_block(size: Size, group: Group, division: Division, rank: int) -> Block:
    """The block that a rank of a group holds of samples and positions that are divided so.

    Raises ValueError where they do not divide.
    """
    words = ("samples", "positions")
    samples, positions = (
        local_run(count, group, axes, rank, what) for count, axes, what in zip(size, division, words, strict=True)
    )
    return Block(samples, positions)
