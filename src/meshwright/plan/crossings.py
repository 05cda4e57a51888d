"""Who sends which samples and positions to whom where activations go from one group of devices to another. Pure
arithmetic.
"""

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.plan.block import Block, Size, held_block
from meshwright.plan.divisions import division
from meshwright.plan.spec import Group, Row


class Message(NamedTuple):
    """A block of a micro-batch, from one rank to another."""

    sender: int
    receiver: int
    block: Block


Side = tuple[Group, Row]
"""A group of devices, and the row under which it divides the activations."""


def crossing_messages(size: Size, source: Side, target: Side) -> Iterator[Message]:
    """The messages that bring every rank of `target` what it holds there of a micro-batch's samples and positions, each
    once.

    Ranks that hold the same share the sending of it evenly, to the token, in the order of their places, so that between
    groups that are alike a rank sends to the one in its place. Two ranks that hold all, before four that take a quarter
    of the samples, or of the positions:

    >>> two, four = Group(devices="0-1", mesh={"x": 2}), Group(devices="2-5", mesh={"x": 4})
    >>> whole, samples, positions = (Row(span="a", roles={"x": split}) for split in ("tp", "dp", "cp"))
    >>> [message[:2] for message in crossing_messages((8, 4), (two, whole), (four, samples))]
    [(0, 2), (0, 3), (1, 4), (1, 5)]
    >>> [message.block.positions for message in crossing_messages((8, 4), (two, whole), (four, positions))]
    [(0, 1), (1, 1), (2, 1), (3, 1)]
    """
    holders: dict[Block, list[int]] = {}
    for rank, held in _held(size, source):
        holders.setdefault(held, []).append(rank)
    wanted = list(_held(size, target))
    for held, ranks in holders.items():
        common = ((receiver, block.common(held)) for receiver, block in wanted)
        yield from _shared([Message(ranks[0], receiver, block) for receiver, block in common if block.tokens], ranks)


def _held(size: Size, side: Side) -> Iterator[tuple[int, Block]]:
    group, row = side
    divided = division(row, group.mesh)
    return ((rank, held_block(size, group, divided, rank)) for rank in group.devices)


def _shared(messages: list[Message], senders: list[int]) -> Iterator[Message]:
    """The same messages, the n-th part of all their tokens from the n-th sender."""
    total, done = sum(message.block.tokens for message in messages), 0
    ends = [(place + 1) * total // len(senders) for place in range(len(senders))]
    place = 0
    for _, receiver, block in messages:
        first = 0
        while first < block.tokens:
            while ends[place] == done:
                place += 1
            count = min(block.tokens - first, ends[place] - done)
            for part in _cut(block, first, count):
                yield Message(senders[place], receiver, part)
            first, done = first + count, done + count


def _cut(block: Block, first: int, count: int) -> Iterator[Block]:
    """Some of a block's tokens, sample by sample: whole samples together, parts of a sample by themselves.

    >>> [part.shape for part in _cut(Block((0, 4), (0, 6)), 3, 17)]
    [(1, 3), (2, 6), (1, 2)]
    """
    (sample, _), (position, width) = block
    while count:
        row, start = divmod(first, width)
        rows = 1 if start or count < width else count // width
        part = width if rows > 1 else min(count, width - start)
        yield Block((sample + row, rows), (position + start, part))
        first, count = first + rows * part, count - rows * part
