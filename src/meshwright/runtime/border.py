"""Where activations go from one stage to the next, and their gradients back: inside a group, or between two."""

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.plan.block import Block, held_block
from meshwright.plan.crossings import Message, crossing_messages
from meshwright.plan.divisions import division
from meshwright.plan.spec import Placed
from meshwright.runtime.place import Place
from meshwright.runtime.redistribute import Move
from meshwright.runtime.timetable import Way

Posted = list[tuple[dist.Work, Tensor]]
"""Messages under way, with the memory that they read or fill."""


class _Part(NamedTuple):
    """This rank's part in a crossing: what it holds on its side, and its messages."""

    held: Block
    messages: list[Message]


class Border:
    """Between the last layer of a stage and the first of the next. Each side holds the samples and positions that its
    row gives it.

    Shapes are the batch's and the model's, so no message says them, and they may change from step to step.
    """

    def __init__(self, place: Place, source: Placed, target: Placed) -> None:
        self.place, self.source, self.target = place, source, target
        self.move: Move | None = None
        if source.group == target.group:
            self.move = Move(place.groups[source.group], source.row, target.row, place.processes)
        self._part = lru_cache(maxsize=16)(self._find_part)

    def across(self, tensor: Tensor, way: Way) -> Tensor:
        """On one group: from one division of the activations to the other."""
        assert self.move is not None
        return (self.move if way == "forward" else self.move.back)(tensor.contiguous())

    def send(self, tensor: Tensor, way: Way, length: int) -> Posted:
        """Post this rank's messages to the other group, of samples of `length` positions."""
        held, messages = self._part(way, length)
        posted: Posted = []
        for message in messages:
            piece = tensor[message.block.within(held)].contiguous()
            posted.append((_work(dist.isend(piece, message.receiver)), piece))
        return posted

    def receive(self, way: Way, length: int, like: Tensor) -> "Arriving":
        """Post this rank's messages from the other group."""
        held, messages = self._part(way, length)
        width = self.place.layer(self.source).stack.output
        arriving = Arriving(torch.empty((*held.shape, width), dtype=like.dtype, device=like.device), [], [])
        for message in messages:
            place = arriving.whole[message.block.within(held)]
            piece = place if place.is_contiguous() else torch.empty_like(place, memory_format=torch.contiguous_format)
            arriving.posted.append((_work(dist.irecv(piece, message.sender)), piece))
            arriving.places.append(place)
        return arriving

    def _find_part(self, way: Way, length: int) -> _Part:
        """Of the side that this rank is on: it sends what its side holds, or receives it."""
        sides = {placed.group: (self.place.groups[placed.group], placed.row) for placed in (self.source, self.target)}
        source, target = (sides[placed.group] for placed in self._ends(way))
        rank, size = self.place.processes.rank, (self.place.micro_batch, length)
        group, row = sides[self.place.name]
        return _Part(
            held_block(size, group, division(row, group.mesh), rank),
            [each for each in crossing_messages(size, source, target) if rank in each[:2]],
        )

    def _ends(self, way: Way) -> tuple[Placed, Placed]:
        return (self.source, self.target) if way == "forward" else (self.target, self.source)


class Arriving(NamedTuple):
    """Activations [held samples, held positions, width] that are under way to this rank, or there already."""

    whole: Tensor
    posted: Posted
    places: list[Tensor]
    """Where in the whole each message belongs."""

    def wait(self) -> Tensor:
        """The whole, when all is there."""
        for (work, piece), place in zip(self.posted, self.places, strict=True):
            work.wait()
            if piece is not place:
                place.copy_(piece)
        return self.whole


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is in the default group"
    return work
