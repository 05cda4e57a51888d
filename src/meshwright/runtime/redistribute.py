"""Moving activations between layers that divide samples and positions differently.

A rank holds a run of samples and a run of positions. Each held number's gradient is the true one on every rank that
holds it, so the way back of a move is the opposite move. The steps are those of `plan.divisions`.
"""

from typing import Any

import torch
from torch import Tensor

from meshwright.plan.block import Block, held_block
from meshwright.plan.divisions import Division, division, steps
from meshwright.plan.divisions import Step as Algebra
from meshwright.plan.spec import Group, Row
from meshwright.runtime.mesh import ProcessGroups


class Move:
    """From one row's division of the activations to another's, on one group of devices, and back.

    Every rank must make it, members of the group or not: its process groups are made then.
    """

    def __init__(
        self, group: Group, source: Row, target: Row, processes: ProcessGroups, back: "Move | None" = None
    ) -> None:
        divided = (division(row, group.mesh) for row in (source, target))
        self.steps = [Step(group, step, processes) for step in steps(group.mesh, *divided)]
        self.back = back or Move(group, target, source, processes, self)
        """The opposite move, which gradients take."""

    def __call__(self, x: Tensor) -> Tensor:
        """Move [held samples, held positions, ...] → [wanted samples, wanted positions, ...]."""
        for step in self.steps:
            x = step(x)
        return x.view_as(x) if not self.steps else x


class Step:
    """One collective of a move."""

    def __init__(self, group: Group, step: Algebra, processes: ProcessGroups) -> None:
        self.group, self.way, self.source, self.target = group, step.way, step.source, step.target
        self.rank, self.peers = processes.rank, processes.over(group, step.axes)

    def __call__(self, x: Tensor) -> Tensor:
        """This step of a move of x."""
        assert self.peers is not None, "this rank takes part"
        mesh = self.group.mesh
        samples, positions = (x.shape[dim] * Division(self.source[dim], ()).ways(mesh) for dim in (0, 1))
        held, wanted = (
            [held_block((samples, positions), self.group, each, rank) for rank in self.peers.ranks]
            for each in (self.source, self.target)
        )
        place = self.peers.place
        match self.way:
            case "slice":
                return x[wanted[place].within(held[place])].clone(memory_format=torch.contiguous_format)
            case "all_gather":
                dim = 0 if self.source.batch != self.target.batch else 1
                return torch.cat(self.peers.all_gather(x), dim)
            case "all_to_all":
                sent = [x[want.common(held[place]).within(held[place])] for want in wanted]
                return _put_together(self.peers.all_to_all(sent), held, wanted[place])
        return self._exchange(x, held, wanted)

    def _exchange(self, x: Tensor, held: list[Block], wanted: list[Block]) -> Tensor:
        """Everything comes from the nearest peer that holds it: oneself first."""
        assert self.peers is not None
        place, size = self.peers.place, self.peers.size
        plans = [_senders(wanted[to], held, to) for to in range(size)]
        sent = [x[plans[to][place].within(held[place])] for to in range(size)]
        shapes = [(*block.shape, *x.shape[2:]) for block in plans[place]]
        return _put_together(self.peers.exchange(sent, shapes), plans[place], wanted[place])


def _senders(wanted: Block, held: list[Block], receiver: int) -> list[Block]:
    """What each peer sends to one that wants a block: blocks that two hold are equal, and come from the nearer."""
    found = [Block((0, 0), (0, 0))] * len(held)
    for distance in range(len(held)):
        peer = (receiver + distance) % len(held)
        if held[peer] not in (held[(receiver + nearer) % len(held)] for nearer in range(distance)):
            found[peer] = wanted.common(held[peer])
    return [Block((0, 0), (0, 0)) if not block.tokens else block for block in found]


def _put_together(pieces: list[Tensor], came_from: list[Block], wanted: Block) -> Tensor:
    whole = pieces[0].new_empty((*wanted.shape, *pieces[0].shape[2:]))
    for piece, block in zip(pieces, came_from, strict=True):
        part = wanted.common(block)
        if part.tokens:
            whole[part.within(wanted)].copy_(piece)
    return whole


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, move: Move) -> Tensor:
        ctx.back = move.back
        return move(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.back(gradients[0].contiguous()), None


def moved(x: Tensor, move: Move) -> Tensor:
    """Apply a move to activations [held samples, held positions, ...]; gradients take the way back."""
    return _Moved.apply(x, move)  # type: ignore[no-untyped-call, no-any-return]
