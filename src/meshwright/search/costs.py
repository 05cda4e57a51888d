"""What ranges of layers take as a stage, under one state: the fastest way of each that fits into memory."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from meshwright.search.bench import Bench, Bytes, Passing, Seconds
from meshwright.search.choice import Option
from meshwright.search.frontier import Floats, Frontier, beside, repeated
from meshwright.search.knapsack import fastest_within
from meshwright.search.room import Held, Room, held_by_stage

Counts: TypeAlias = tuple[tuple[int, int], ...]
"""Kinds of layers, each with how many there are."""
_NOTHING = Passing(0.0, 0.0, 0.0, 0.0)


class Way(NamedTuple):
    """How a stage's layers are taken: seconds that it takes at least, and how many of each kind take each option."""

    forward: float
    backward: float
    finish: float
    """What ends a step."""
    weight: float
    """Of backward, the gradients of the weights."""
    taken: tuple[tuple[int, ...], ...]
    """[kinds of the stage, recomputes]"""


class StageCosts:
    """The layers of a model under one state, on one shape: shared by all its schedules.

    `free`: as if the state cost no time, and nothing ended a step: what no plan of the shape beats whose states keep as
    much as this one or more.
    """

    def __init__(self, bench: Bench, state: str | None, room: Room, *, free: bool = False) -> None:
        self.bench, self.state, self.room, self.free = bench, state, room, free
        self.layers = bench.problem.model.layers
        self.micro_batches = bench.choice.micro_batches
        kinds: dict[tuple[object, ...], int] = {}
        last = len(self.layers) - 1
        keys = [(id(each.stack), place == last) for place, each in enumerate(self.layers)]
        self.kinds = [kinds.setdefault(key, len(kinds)) for key in keys]
        self.first = [self.layers[self.kinds.index(kind)] for kind in range(len(kinds))]
        self._before = np.zeros((len(self.layers) + 1, len(kinds)), dtype=np.int64)
        np.cumsum(np.eye(len(kinds), dtype=np.int64)[self.kinds], axis=0, out=self._before[1:])
        self._ways: dict[tuple[Counts, float], Way | None] = {}
        self._times: dict[tuple[Counts, tuple[int, ...]], Way] = {}
        self._bytes: dict[int, list[Bytes]] = {}
        self._seconds: dict[tuple[int, int], Seconds] = {}
        self._held: dict[Counts, Held] = {}

    def bytes(self, kind: int) -> list[Bytes]:
        """Of a kind of layer, one for each recompute that it may take, from the least memory to the most."""
        if kind not in self._bytes:
            layer = self.first[kind]
            options = [Option(self.state, name) for name in self.bench.recomputes(layer)]
            self._bytes[kind] = [self.bench.bytes(layer, option) for option in options]
        return self._bytes[kind]

    def seconds(self, kind: int, place: int = -1) -> Seconds:
        """Of a kind of layer under one of its recomputes; the last is the fastest."""
        if (kind, place) not in self._seconds:
            layer = self.first[kind]
            recompute = self.bench.recomputes(layer)[place]
            if self.free:
                found = _freed(self.bench.seconds(layer, Option(None, recompute)))
            else:
                found = self.bench.seconds(layer, Option(self.state, recompute))
            self._seconds[kind, place] = found
        return self._seconds[kind, place]

    def least(self) -> tuple[float, float]:
        """Seconds of all layers for a micro-batch both ways, and of that forward, whatever the memory: computing, and
        what it loses while the links are busy.
        """
        contention = self.bench.placement.calibration.contention
        lost, both, ahead = contention / (1 + contention), 0.0, 0.0
        for kind in self.kinds:
            found = self.seconds(kind)
            forward = found.forward.compute + lost * found.forward.gather
            backward = found.backward.compute + lost * (found.backward.gather + found.backward.reduce)
            both, ahead = both + forward + backward, ahead + forward
        return both, ahead

    def counts(self, first: int, after: int) -> Counts:
        """Kinds of a range of layers, with how many there are."""
        found = (self._before[after] - self._before[first]).tolist()
        return tuple((kind, count) for kind, count in enumerate(found) if count)

    def way(self, counts: Counts, alive: float) -> Way | None:
        """The fastest way of a stage that fits with so many micro-batches in flight; none where none does."""
        key = counts, alive
        if key not in self._ways:
            self._ways[key] = self._way(counts, alive)
        return self._ways[key]

    def _way(self, counts: Counts, alive: float) -> Way | None:
        """By the largest recomputed layer that is allowed, since it is there once however many are recomputed."""
        held, best = self.held(counts), None
        least = sum(count * self.bytes(kind)[0].kept.kept for kind, count in counts)
        for level in sorted({each.again for kind, _ in counts for each in self.bytes(kind)}):
            room = self.room.most(held, level, alive, self.micro_batches)
            possible = all(self._some(kind, level) for kind, _ in counts)
            found = self._cheapest(counts, level, room) if possible and room >= least else None
            if found is not None and (best is None or found[0] < best[0]):
                best = found
                if level == 0:
                    break  # nothing is recomputed, and nothing is faster
        return None if best is None else self.timed(counts, best[1])

    def _cheapest(self, counts: Counts, level: float, room: float) -> tuple[float, tuple[int, ...]] | None:
        """The ways of least time whose activations have room, with recomputed layers up to a size: seconds of backward,
        but for what a state adds to all ways alike, and how many layers of each kind take each recompute.
        """
        *others, (kind, count) = sorted(counts, key=lambda each: each[1])
        before = Frontier(np.zeros((1, 2)), np.zeros((1, 0), dtype=np.int64))
        for other, size in others:
            before = beside(before, self._dealt(other, size, level))
        found = fastest_within(self._table(kind, level), count, room - before.costs[:, 1])
        total = found.seconds + before.costs[:, 0]
        row = int(np.argmin(total))
        if not np.isfinite(total[row]):
            return None
        taken, place = dict[int, tuple[int, ...]](), 0
        for other, _ in others:
            options = len(self.bytes(other))
            taken[other] = tuple(before.counts[row, place : place + options].tolist())
            place += options
        allowed = [each.again <= level for each in self.bytes(kind)]
        own = iter(found.counts[row].tolist())
        taken[kind] = tuple(next(own) if each else 0 for each in allowed)
        return float(total[row]), tuple(each for kind, _ in counts for each in taken[kind])

    def _some(self, kind: int, level: float) -> bool:
        """Whether a kind has a recompute up to this size."""
        return any(each.again <= level for each in self.bytes(kind))

    def _table(self, kind: int, level: float) -> Floats:
        """Seconds of backward and bytes of activations of a kind under each recompute up to a size."""
        options, layer = self.bytes(kind), self.first[kind]
        names = self.bench.recomputes(layer)
        rows = [
            (self.bench.seconds(layer, Option(None, name)).backward.compute, each.kept.kept)
            for name, each in zip(names, options, strict=True)
            if each.again <= level
        ]
        return np.array(rows).reshape(-1, 2)

    def _dealt(self, kind: int, count: int, level: float) -> Frontier:
        """All undominated ways of layers of one kind; states share them."""
        key = (kind, count), level
        if key not in self.bench.fronts:
            allowed = [place for place, each in enumerate(self.bytes(kind)) if each.again <= level]
            table = self._table(kind, level)
            alone = Frontier(count * table, np.array([[count]]))
            front = alone if len(table) == 1 else repeated(table, count)
            self.bench.fronts[key] = _spread(front, allowed, len(self.bytes(kind)))
        return self.bench.fronts[key]

    def held(self, counts: Counts) -> Held:
        """What a stage holds whatever it computes again."""
        if counts not in self._held:
            fastest = [(*self.bytes(kind)[-1], count) for kind, count in counts]
            self._held[counts] = held_by_stage(fastest, self.bench.placement.plan.execution.prefetch)
        return self._held[counts]

    def timed(self, counts: Counts, taken: tuple[int, ...]) -> Way:
        """A stage whose layers take these options, so many of each, kind by kind."""
        key = counts, taken
        if key not in self._times:
            self._times[key] = self._timed(counts, taken)
        return self._times[key]

    def _timed(self, counts: Counts, taken: tuple[int, ...]) -> Way:
        forward, backward, reduce, finish = _NOTHING, _NOTHING, 0.0, 0.0
        split, place, weight = list[tuple[int, ...]](), 0, 0.0
        for kind, _ in counts:
            options = len(self.bytes(kind))
            own = taken[place : place + options]
            place += options
            split.append(own)
            for cost, count in ((self.seconds(kind, each), count) for each, count in enumerate(own) if count):
                forward, backward = forward.plus(cost.forward.times(count)), backward.plus(cost.backward.times(count))
                reduce, finish = reduce + count * cost.reduce, finish + count * cost.finish
                weight += count * cost.weight
        ends = self.seconds(counts[0][0]), self.seconds(counts[-1][0])
        contention = self.bench.placement.calibration.contention
        there = forward.least(ends[0].forward, ends[1].forward, contention)
        back = backward.least(ends[1].backward, ends[0].backward, contention)
        return Way(there, back, max(0.0, reduce - back) + finish, weight, tuple(split))


def _freed(found: Seconds) -> Seconds:
    """A layer's seconds without those of any state."""
    forward, backward = found.forward, found.backward
    backward = backward._replace(compute=backward.compute - found.adding, gather=0.0, reduce=0.0)
    return found._replace(forward=forward._replace(gather=0.0), backward=backward, adding=0.0, reduce=0.0, finish=0.0)


def _spread(found: Frontier, places: Sequence[int], options: int) -> Frontier:
    """Counts of some options as counts of all."""
    counts = np.zeros((len(found), options), dtype=np.int64)
    counts[:, places] = found.counts
    return Frontier(found.costs, counts)
