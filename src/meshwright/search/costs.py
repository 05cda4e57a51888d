"""What ranges of layers take as a stage, under one state: the fastest way of each that fits into memory."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from meshwright.cost.overlap import Streams
from meshwright.model.spec import Layer
from meshwright.search.bench import Bench, Bytes, Seconds
from meshwright.search.bounds import Floor
from meshwright.search.choice import Option
from meshwright.search.frontier import Floats, Frontier, beside, repeated
from meshwright.search.ground import Pace
from meshwright.search.knapsack import Knapsack
from meshwright.search.passing import Run, gathers_ahead, least_pass, pace
from meshwright.search.room import Held, Room, held_by_stage

Counts: TypeAlias = tuple[tuple[int, int], ...]
"""Kinds of layers, each with how many there are."""


_NOTHING = Frontier(np.zeros((1, 2)), np.zeros((1, 0), dtype=np.int64))
"""The way of no layers."""


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


class Again(NamedTuple):
    """A layer of a stage under one of its recomputes."""

    seconds: float
    """What it adds to a backward, as far as it depends on its recompute."""
    kept: float
    weights: float
    again: float
    """Bytes (`cost.activations`)."""


class _Taken(NamedTuple):
    """How layers are taken: seconds of backward, but for what a state adds to all ways alike, and how many layers of
    each kind take each recompute.
    """

    seconds: float
    counts: tuple[int, ...]
    free: bool
    """Whether nothing is recomputed."""


def lost_to(layer: Seconds, contention: float) -> tuple[float, float]:
    """Seconds that a layer adds to a pass at least, both ways: computing, and what it loses while links are busy."""
    lost, back = contention / (1 + contention), layer.backward
    return layer.forward.compute + lost * layer.forward.gather, back.compute + lost * (back.gather + back.reduce)


class StageCosts:
    """The layers of a model under one state, on one shape: shared by all its schedules."""

    def __init__(self, bench: Bench, state: str | None, room: Room) -> None:
        self.bench, self.state, self.room = bench, state, room
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
        self._free: dict[Counts, float] = {}
        """Micro-batches in flight up to which a stage has room for its fastest way."""
        self._times: dict[tuple[Counts, tuple[int, ...]], Way] = {}
        self._bytes: dict[int, list[Bytes]] = {}
        self._seconds: dict[tuple[int, int], Seconds] = {}
        self._held: dict[Counts, Held] = {}
        self._fronts: dict[tuple[int, int, float, bool, float, float], Frontier] = {}
        self._hidden: dict[Counts, float] = {}
        self._again: dict[tuple[int, bool], list[Again]] = {}
        self._sums: dict[Counts, bool] = {}
        """As `_ahead` says."""
        self._stages: dict[tuple[Counts, float, float, float], Frontier] = {}
        self._mixtures: dict[tuple[Counts, float], tuple[Frontier, Knapsack, list[int]]] = {}
        self._ordered = self.kinds == sorted(self.kinds)
        execution, self._contention = bench.problem.wishes.runs, bench.calibration.contention
        self._streams = Streams(execution.prefetch, contention=self._contention)

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
            found = self.bench.seconds(layer, Option(self.state, recompute))
            self._seconds[kind, place] = found
        return self._seconds[kind, place]

    def least(self) -> tuple[float, float]:
        """Seconds of all layers for a micro-batch both ways, and how much of those of a layer forward takes at most,
        whatever the memory.
        """
        whole, most = 0.0, 0.0
        for kind in range(len(self.first)):
            forward, backward = self.alone(kind)
            both = forward + backward
            whole, most = whole + self.kinds.count(kind) * both, max(most, forward / both if both else 0.0)
        return whole, most

    def alone(self, kind: int, place: int = -1) -> tuple[float, float]:
        """Seconds that a layer of a kind adds to a pass at least, both ways: computing, and what it loses while the
        links are busy.
        """
        return lost_to(self.seconds(kind, place), self._contention)

    def pace(self, main: Layer, floor: Floor | None = None) -> Pace:
        """Of a layer under each of its recomputes, and of all layers once: by a `floor` those of other kinds, where
        there is one.
        """
        own = next(kind for kind, layer in enumerate(self.first) if layer.stack is main.stack)
        ways = [self.alone(own, place) for place in range(len(self.bench.recomputes(main)))]
        of_kinds, body = [self._both(kind, own, floor) for kind in range(len(self.first))], self.bench.body
        both = [of_kinds[kind] for kind in self.kinds]
        return Pace(
            forward=min(there for there, _ in ways),
            backward=tuple(back for _, back in ways),
            once=sum(both),
            numbered=min(both[place] for place in body),
            head=sum(both[body[-1] + 1 :]),
            finish=self.seconds(own).finish,
        )

    def _both(self, kind: int, exact: int, floor: Floor | None) -> float:
        """Seconds that a layer of a kind adds both ways at least; but for one kind by a floor."""
        if floor is None or kind == exact:
            return sum(self.alone(kind))
        return floor.of(self.first[kind]).both

    def counts(self, first: int, after: int) -> Counts:
        """Kinds of a range of layers, with how many there are."""
        found = (self._before[after] - self._before[first]).tolist()
        return tuple((kind, count) for kind, count in enumerate(found) if count)

    def way(self, counts: Counts, alive: float) -> Way | None:
        """The fastest way of a stage that fits with so many micro-batches in flight; none where none does."""
        if alive <= self._free.get(counts, 0.0):
            return self.fastest(counts)
        if (counts, alive) not in self._ways:
            found = self._ways[counts, alive] = self._fitting(counts, alive)
            if found is not None and found.taken == self.fastest(counts).taken:
                self._free[counts] = alive  # with less in flight, there is room for the same
        return self._ways[counts, alive]

    def fastest(self, counts: Counts) -> Way:
        """A stage with nothing computed again."""
        return self._alike(counts, -1)

    def slowest(self, counts: Counts) -> Way:
        """A stage with as much computed again as can be."""
        return self._alike(counts, 0)

    def _alike(self, counts: Counts, place: int) -> Way:
        taken = list[int]()
        for kind, count in counts:
            own = [0] * len(self.bytes(kind))
            own[place] = count
            taken += own
        return self.timed(counts, tuple(taken))

    def hidden(self, counts: Counts) -> float:
        """Seconds of recompute that leave the backward of a stage as it is, at most: links or the host take longer."""
        if counts not in self._hidden:
            fast, slow = self.fastest(counts), self.slowest(counts)
            rows = [(count, self.again(counts, kind)) for kind, count in counts]
            more = sum(count * (own[0].seconds - own[-1].seconds) for count, own in rows)
            self._hidden[counts] = max(0.0, more - (slow.backward - fast.backward))
        return self._hidden[counts]

    def again(self, counts: Counts, kind: int) -> list[Again]:
        """A layer of a kind on a stage under each of its recomputes."""
        return self._rows(kind, ahead=self._ahead(counts))

    def _rows(self, kind: int, *, ahead: bool) -> list[Again]:
        if (kind, ahead) not in self._again:
            self._again[kind, ahead] = [
                Again(
                    self._backward(self.seconds(kind, place), ahead=ahead), own.kept.kept, own.kept.weights, own.again
                )
                for place, own in enumerate(self.bytes(kind))
            ]
        return self._again[kind, ahead]

    def front(self, counts: Counts, level: float, held: float, late: float) -> Frontier:
        """All undominated ways of a stage with recomputed layers up to a size: seconds of backward beyond those of the
        fastest, and bytes with so many micro-batches in flight, and so many whose weights' gradients are to come.
        """
        key = counts, level, held, late
        if key not in self._stages:
            found, ahead = _NOTHING, self._ahead(counts)
            for kind, count in counts:
                found = beside(found, self._dealt(kind, count, level, ahead=ahead, held=held, late=late))
            fastest = sum(count * self.again(counts, kind)[-1].seconds for kind, count in counts)
            self._stages[key] = Frontier(found.costs - (fastest, 0.0), found.counts)
        return self._stages[key]

    def _fitting(self, counts: Counts, alive: float) -> Way | None:
        """By the largest recomputed layer that is allowed, since it is there once however many are recomputed."""
        held, best = self.held(counts), None
        least = sum(count * self.bytes(kind)[0].kept.kept for kind, count in counts)
        for level in sorted({each.again for kind, _ in counts for each in self.bytes(kind)}):
            if best is not None and best.free:
                break  # where nothing is recomputed, nothing is faster
            room = self.room.most(held, level, alive, self.micro_batches)
            if room >= least and all(self._some(kind, level) for kind, _ in counts):
                found = self._cheapest(counts, level, room)
                best = min(filter(None, (best, found)), key=lambda each: each.seconds, default=None)
        return None if best is None else self.timed(counts, best.counts)

    def _cheapest(self, counts: Counts, level: float, room: float) -> "_Taken | None":
        """The way of least time whose activations have room, with recomputed layers up to a size."""
        key = counts, level
        if key not in self._mixtures:
            self._mixtures[key] = self._mixture(counts, level)
        before, sack, places = self._mixtures[key]
        found = sack.within(room - before.costs[:, 1])
        total = found.seconds + before.costs[:, 0]
        row = int(total.argmin())
        if not math.isfinite(total[row]):
            return None
        numbers = np.zeros(sum(len(self.bytes(kind)) for kind, _ in counts), dtype=np.int64)
        numbers[places] = np.concatenate((before.counts[row], found.counts[row]))
        return _Taken(float(total[row]), tuple(numbers.tolist()), free=level == 0)

    def _mixture(self, counts: Counts, level: float) -> tuple[Frontier, Knapsack, list[int]]:
        """All ways of the kinds but the largest, that one, and where their options stand among those of all."""
        *others, (kind, count) = sorted(counts, key=lambda each: each[1])
        ahead, starts, start = self._ahead(counts), dict[int, int](), 0
        for each, _ in counts:
            starts[each], start = start, start + len(self.bytes(each))
        before, places = _NOTHING, list[int]()
        for other, size in others:
            before = beside(before, self._dealt(other, size, level, ahead=ahead))
            places += [starts[other] + place for place in range(len(self.bytes(other)))]
        places += [starts[kind] + place for place, each in enumerate(self.bytes(kind)) if each.again <= level]
        return before, Knapsack(self._table(kind, level, ahead=ahead), count), places

    def _some(self, kind: int, level: float) -> bool:
        """Whether a kind has a recompute up to this size."""
        return any(each.again <= level for each in self.bytes(kind))

    def _table(self, kind: int, level: float, *, ahead: bool, held: float = 1.0, late: float = 0.0) -> Floats:
        """Seconds of backward and bytes of activations of a kind under each recompute up to a size, as in `front`."""
        rows = [row for row in self._rows(kind, ahead=ahead) if row.again <= level]
        return np.array([(row.seconds, held * row.kept + late * row.weights) for row in rows]).reshape(-1, 2)

    def _backward(self, cost: Seconds, *, ahead: bool) -> float:
        """What a layer adds to a backward, as far as it depends on its recompute."""
        back = cost.backward
        return pace(back, back.reduce + back.gather, self._streams.contention) if ahead else back.compute

    def _dealt(
        self, kind: int, count: int, level: float, *, ahead: bool, held: float = 1.0, late: float = 0.0
    ) -> Frontier:
        """All undominated ways of layers of one kind, as in `front`."""
        key = kind, count, level, ahead, held, late
        if key not in self._fronts:
            allowed = [place for place, each in enumerate(self.bytes(kind)) if each.again <= level]
            table = self._table(kind, level, ahead=ahead, held=held, late=late)
            alone = Frontier(count * table, np.array([[count]]))
            front = alone if len(table) == 1 else repeated(table, count)
            self._fronts[key] = _spread(front, allowed, len(self.bytes(kind)))
        return self._fronts[key]

    def held(self, counts: Counts) -> Held:
        """What a stage holds whatever it computes again."""
        if counts not in self._held:
            fastest = [(*self.bytes(kind)[-1], count) for kind, count in counts]
            self._held[counts] = held_by_stage(fastest, self.room.ahead)
        return self._held[counts]

    def timed(self, counts: Counts, taken: tuple[int, ...]) -> Way:
        """A stage whose layers take these options, so many of each, kind by kind."""
        key = counts, taken
        if key not in self._times:
            self._times[key] = self._timed(counts, taken)
        return self._times[key]

    def _timed(self, counts: Counts, taken: tuple[int, ...]) -> Way:
        own, split = iter(taken), list[tuple[int, ...]]()
        reduce, finish, weight = 0.0, 0.0, 0.0
        for kind, _ in counts:
            split.append(tuple(next(own) for _ in self.bytes(kind)))
            for cost, count in ((self.seconds(kind, each), count) for each, count in enumerate(split[-1]) if count):
                reduce, finish = reduce + count * cost.reduce, finish + count * cost.finish
                weight += count * cost.weight
        forward, backward = self._runs(counts, split)
        there, back = self._pass(forward), self._pass(backward)
        return Way(there, back, max(0.0, reduce - back) + finish, weight, tuple(split))

    def _runs(self, counts: Counts, taken: Sequence[tuple[int, ...]]) -> tuple[list[Run], list[Run]]:
        """Both ways, in the order in which they run."""
        forward, backward = list[Run](), list[Run]()
        for (kind, _), own in zip(counts, taken, strict=True):
            costs = [self.seconds(kind, place) for place in range(len(own))]
            forward.append(Run(tuple(each.forward for each in costs), own))
            backward.append(Run(tuple(each.backward for each in costs), own))
        return forward, backward[::-1]

    def _pass(self, runs: Sequence[Run]) -> float:
        """Where kinds take turns, it is not known which of them comes first."""
        return least_pass(runs, self._streams, ordered=self._ordered)

    def _ahead(self, counts: Counts) -> bool:
        """Whether what a layer adds to a backward depends on its own recompute alone."""
        if counts not in self._sums:
            taken = [(*(0 for _ in self.bytes(kind)[1:]), count) for kind, count in counts]
            self._sums[counts] = self._ordered and gathers_ahead(self._runs(counts, taken)[1], self._streams)
        return self._sums[counts]


def _spread(found: Frontier, places: Sequence[int], options: int) -> Frontier:
    """Counts of some options as counts of all."""
    counts = np.zeros((len(found), options), dtype=np.int64)
    counts[:, places] = found.counts
    return Frontier(found.costs, counts)
