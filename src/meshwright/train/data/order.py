"""The order of samples: another permutation each epoch, as a function that needs no memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_ROUNDS = 6


def mixed(*words: Any) -> Words:
    """64 bits that look random, of some numbers each: the finalizer of SplitMix64 (Steele 2014, figure 8).

    >>> mixed([0, 1], 1) == mixed([0, 0], 1)
    array([ True, False])
    """
    state: Words = np.zeros(1, np.uint64)
    for word in words:
        state = state + np.asarray(word).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        state = state ^ state >> np.uint64(31)
    return state


def permuted(index: Any, count: int, key: Any) -> Words:
    """Where each `index` stands in the permutation of 0..count-1 that `key` names.

    A Feistel network permutes the next power of four (Luby and Rackoff 1988); an index that leaves the range goes
    through it again until it is back, which keeps it a permutation (Black and Rogaway 2002, section 3).

    >>> sorted(permuted(range(8), 8, 3).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    found = _feistel(np.asarray(index).astype(np.uint64), half, key)
    while (outside := found >= count).any():
        found = np.where(outside, _feistel(found, half, key), found)
    return found


def _feistel(index: Words, half: int, key: Any) -> Words:
    bits, low = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = index >> bits, index & low
    for number in range(_ROUNDS):
        left, right = right, left ^ (mixed(key, right + np.uint64(number << half)) & low)
    return left << bits | right


@dataclass(frozen=True)
class Order:
    """Which of `count` samples stands at each place of an endless run of epochs. `block` samples that lie together in a
    file stay together, so that a reader need not jump: blocks are shuffled, and the samples of each.
    """

    count: int
    seed: int
    shuffle: bool
    block: int = 1

    def at(self, places: Any) -> list[int]:
        """The samples at some places: each epoch has every one once."""
        epochs, index = np.divmod(np.asarray(places), self.count)
        if not self.shuffle:
            return [int(each) for each in index]
        key = mixed(self.seed, epochs)
        if self.block > 1:
            return self._in_blocks(index, key)
        return [int(each) for each in permuted(index, self.count, key)]

    def _in_blocks(self, index: NDArray[np.int64], key: Words) -> list[int]:
        """A rest that fills no block stays at the end."""
        whole = self.count // self.block
        blocks, inside = np.divmod(index, self.block)
        rest = blocks == whole
        blocks = np.where(rest, whole, permuted(np.where(rest, 0, blocks), max(whole, 1), key)).astype(np.int64)
        key, left = mixed(key, blocks), self.count - whole * self.block
        inside = np.where(
            rest, permuted(np.where(rest, inside, 0), max(left, 1), key), permuted(inside, self.block, key)
        )
        return [int(block) * self.block + int(place) for block, place in zip(blocks, inside, strict=True)]
