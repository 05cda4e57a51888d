"""Moving activations between layers that divide the samples differently.

A rank holds a run of samples. Each held sample's gradient is the true one on every rank that holds the sample, so the
way back of a move is the opposite move. The cheapest of three is taken: a slice where nothing must move, an
all-gather where whole runs join, an exchange of just the missing samples otherwise.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from meshwright.plan.groups import local_batch, mesh_order
from meshwright.plan.spec import Group, Row
from meshwright.runtime.mesh import Peers, ProcessGroups

Run = tuple[int, int]
"""(first sample, number of samples)."""


@dataclass(frozen=True)
class Move:
    """From one row's division of the samples to another's, on one group of devices."""

    group: Group
    source: Row
    target: Row
    processes: ProcessGroups

    @cached_property
    def peers(self) -> Peers | None:
        """Who takes part: all that differ in an axis that either row divides the batch over, less the common outer
        ones.
        """
        source, target = (mesh_order(self.group, row.axes("dp")) for row in (self.source, self.target))
        common = 0
        while common < min(len(source), len(target)) and source[common] == target[common]:
            common += 1
        return self.processes.over(self.group, mesh_order(self.group, {*source[common:], *target[common:]}))

    def runs(self, samples: int, row: Row) -> list[Run]:
        """The run of each peer under a row."""
        assert self.peers is not None
        return [local_batch(samples, self.group, row, rank) for rank in self.peers.ranks]

    @cached_property
    def back(self) -> "Move":
        """The opposite move."""
        return Move(self.group, self.target, self.source, self.processes)

    def __call__(self, x: Tensor, samples: int) -> Tensor:
        """Move [held samples, ...] → [wanted samples, ...] of a micro-batch of `samples`."""
        if self.peers is None:
            return x
        held, wanted = self.runs(samples, self.source), self.runs(samples, self.target)
        if held == wanted:
            return x.view_as(x)
        place = self.peers.place
        if all(_inside(want, have) for want, have in zip(wanted, held, strict=True)):
            return x.narrow(0, wanted[place][0] - held[place][0], wanted[place][1]).clone()
        whole = (held[0][0], sum(count for _, count in held))
        joins = all(a[0] + a[1] == b[0] for a, b in pairwise(held))
        if joins and all(want == whole for want in wanted):
            return torch.cat(self.peers.all_gather(x))
        return self._exchange(x, held, wanted)

    def _exchange(self, x: Tensor, held: list[Run], wanted: list[Run]) -> Tensor:
        """Every wanted sample comes from the nearest peer that holds it: oneself first."""
        assert self.peers is not None
        place, size = self.peers.place, self.peers.size
        sources = [_sources(wanted[to], held, to) for to in range(size)]
        first = held[place][0]
        sent = [x[[sample - first for sample in _from(sources[to], wanted[to], place)]] for to in range(size)]
        mine = [_from(sources[place], wanted[place], other) for other in range(size)]
        received = self.peers.exchange(sent, [(len(samples), *x.shape[1:]) for samples in mine])
        order = torch.tensor([sample for samples in mine for sample in samples]).argsort()
        return torch.cat(received)[order.to(x.device)]


def _inside(inner: Run, outer: Run) -> bool:
    return outer[0] <= inner[0] and inner[0] + inner[1] <= outer[0] + outer[1]


def _sources(wanted: Run, held: list[Run], receiver: int) -> list[int]:
    """For each wanted sample, the peer that sends it."""
    by_distance = sorted(range(len(held)), key=lambda peer: (peer - receiver) % len(held))
    return [
        next(peer for peer in by_distance if held[peer][0] <= sample < sum(held[peer]))
        for sample in range(wanted[0], sum(wanted))
    ]


def _from(sources: list[int], wanted: Run, peer: int) -> list[int]:
    return [wanted[0] + offset for offset, source in enumerate(sources) if source == peer]


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, move: Move, samples: int) -> Tensor:
        ctx.back, ctx.samples = move.back, samples
        return move(x, samples)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0].contiguous(), ctx.samples), None, None


def moved(x: Tensor, move: Move, samples: int, held: int) -> Tensor:
    """Apply a move to activations [held samples, ...] of a micro-batch of `samples`; gradients take the way back."""
    assert x.shape[0] == held, f"{x.shape[0]} samples came in, {held} should have"
    return _Moved.apply(x, move, samples)  # type: ignore[no-untyped-call, no-any-return]
