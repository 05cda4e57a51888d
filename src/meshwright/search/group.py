"""One group of a pipeline: which layers of its stages recompute, weighed by what each stage holds at a time.

A group is fullest at some backward of its order. What a layer keeps is there as often as its stage has micro-batches in
flight then, so that a layer of an early stage saves most by recomputing. Each instant alone bounds the time of all
deals from below; the fastest deal of one instant that fits at all others too is the fastest of all.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.plan.orders import Integers
from meshwright.search.costs import Counts, StageCosts, Way
from meshwright.search.frontier import Floats, Frontier
from meshwright.search.instants import Instants

_TRIED = 6
"""Instants by which the fastest deal is looked for, before one is mended layer by layer."""
_ROUNDING = 1e-12
"""Of a device's memory, what sums may differ by."""


class Deal(NamedTuple):
    """Options for all layers of a group."""

    seconds: float
    """Of the backwards of its stages, beyond those of the fastest options, each stage's so many times."""
    taken: Integers
    """How many layers take each option: stage by stage, kind by kind."""


class _Columns(NamedTuple):
    """Options, stage by stage and kind by kind: arrays of one length."""

    stage: Integers
    kind: Integers
    seconds: Floats
    """Of a backward, beyond those of the fastest option of the kind."""
    kept: Floats
    late: Floats
    """Bytes for the gradients of weights alone."""
    again: Floats
    number: Integers
    """Layers of the kind on the stage."""
    fastest: Integers
    """1 for the fastest option of its kind."""


class Group:
    """The stages of a group, by kinds of layers, and the instants of its order."""

    def __init__(self, costs: StageCosts, counts: Sequence[Counts], instants: Instants) -> None:
        self._costs, self.counts, self._instants = costs, tuple(counts), instants
        self._columns = _Columns(*map(np.array, zip(*self._options(), strict=True)))
        self._levels = sorted(set(self._columns.again.tolist()))
        self._levels_of = [
            sorted(set(self._columns.again[self._columns.stage == stage].tolist())) for stage in range(len(counts))
        ]
        self._starts = np.searchsorted(self._columns.stage, np.arange(len(counts)))
        """Where the options of each stage begin."""
        self._rests = np.array([costs.held(each) for each in counts]).T
        """What each stage holds: an array for each field of `Held`."""
        self._known: dict[tuple[float, ...], Floats] = {}
        self._last: int | None = None
        """The instant that was fullest when a deal was last looked for."""

    @property
    def _rounding(self) -> float:
        """Bytes that sums may differ by."""
        return _ROUNDING * self._costs.room.capacity

    def _options(self) -> Iterator[tuple[float, ...]]:
        for stage, counts in enumerate(self.counts):
            for kind, count in counts:
                rows = self._costs.again(counts, kind)
                for place, row in enumerate(rows):
                    last = place == len(rows) - 1
                    yield stage, kind, row.seconds - rows[-1].seconds, row.kept, row.weights, row.again, count, last

    @property
    def fastest(self) -> Integers:
        """What layers take where nothing is computed again."""
        return self._columns.number * self._columns.fastest

    @property
    def ends(self) -> bool:
        """Whether there is room for what a step ends with."""
        resting, gradients, widened, *_ = self._rests.sum(axis=1).tolist()
        return self._costs.room.ends(resting + gradients, widened, overlapping=self._instants.overlapping)

    def over(self, taken: Integers) -> Floats:
        """Bytes that are missing at each instant; less than none where there is room."""
        columns, instants, starts = self._columns, self._instants, self._starts
        levels = np.maximum.reduceat(columns.again * (taken > 0), starts)
        found: Floats = instants.held @ np.add.reduceat(taken * columns.kept, starts) - self._rooms(levels.tolist())
        if instants.late.any():
            found += instants.late @ np.add.reduceat(taken * columns.late, starts)
        return found

    def _rooms(self, levels: Sequence[float]) -> Floats:
        """Bytes for activations at each instant, where a backward of each stage computes a layer of so much again."""
        key = tuple(levels)
        if key not in self._known:
            self._known[key] = self._left(levels)
        return self._known[key]

    def _left(self, levels: Sequence[float]) -> Floats:
        instants, kernels = self._instants, self._costs.bench.placement.kernels
        resting, gradients, _, window, reduced, logits, loss = self._rests
        unlike = float(np.minimum(levels, loss).max())
        begun = np.ones_like(instants.begun) if kernels.keeps_gradients else instants.begun
        rests = resting.sum() + begun @ gradients
        room = self._costs.room.moving_beside(rests, unlike, overlapping=instants.overlapping)
        # Of a layer's backward and the loss's, what is less passes while the other is there.
        alone = np.array(levels) + reduced < loss
        again, after = np.where(alone, 0.0, levels), np.where(alone, 0.0, reduced)
        own, first, last = instants.stage, instants.first, instants.last
        needs = first * np.where(alone, loss, again)[own] + last * after[own]
        needs = needs + (last & ~first & kernels.retains) * again[own]
        found: Floats = room - needs - window[own] - instants.held @ logits
        return found

    def solve(self, times: Floats) -> tuple[float, Deal | None]:
        """The fastest deal that fits, where the backward of each stage counts so many times, and seconds that all that
        fit take at least; infinity where none does.
        """
        least, best, tried = 0.0, Deal(0.0, self.fastest), set[int]()
        while len(tried) < _TRIED:
            worst = self._worst(best.taken) if tried or self._last is None else self._last
            if worst is None:
                return least, best
            if worst in tried:
                break
            tried.add(worst)
            found = self._at(worst, times)
            if found is None:
                return np.inf, None
            least, best, self._last = max(least, found.seconds), found, worst
        return least, self._mended(best.taken, times)

    def _worst(self, taken: Integers) -> int | None:
        """The fullest instant, if it has no room."""
        over = self.over(taken)
        worst = int(over.argmax())
        return worst if over[worst] > self._rounding else None

    def _mended(self, taken: Integers, times: Floats) -> Deal | None:
        """The deal with one layer after the other computed again, as far as must be, by the bytes that it saves."""
        taken = taken.copy()
        cost = self._columns.seconds * times[self._columns.stage]
        for _ in range(int(self.fastest.sum()) * len(self._levels)):
            worst = self._worst(taken)
            if worst is None:
                return Deal(float(cost @ taken), taken)
            moves = list(self._moves(taken, worst, cost))
            if not moves:
                break
            _, place, to = min(moves)
            taken[place], taken[to] = taken[place] - 1, taken[to] + 1
        alike = (Deal(float(cost @ each), each) for each in map(self._alike, self._levels))
        return next((deal for deal in alike if self._worst(deal.taken) is None), None)

    def _alike(self, level: float) -> Integers:
        """What layers take that all compute again as much as they can, up to a size."""
        columns, taken = self._columns, np.zeros_like(self.fastest)
        for place in np.flatnonzero(columns.again <= level)[::-1].tolist():  # the first of a kind keeps least
            like = (columns.stage == columns.stage[place]) & (columns.kind == columns.kind[place])
            taken[like], taken[place] = 0, columns.number[place]
        return taken

    def _moves(self, taken: Integers, instant: int, cost: Floats) -> Iterator[tuple[float, int, int]]:
        """Of layers that may compute more again: seconds for each byte saved at an instant, and both options."""
        stage, kind = self._columns.stage, self._columns.kind
        held, late = self._instants.held[instant][stage], self._instants.late[instant][stage]
        size = held * self._columns.kept + late * self._columns.late
        for place in np.flatnonzero(taken).tolist():
            like = (stage == stage[place]) & (kind == kind[place]) & (size < size[place])
            for other in np.flatnonzero(like).tolist():
                yield (cost[other] - cost[place]) / (size[place] - size[other]), place, other

    def _at(self, instant: int, times: Floats) -> Deal | None:
        """The fastest deal that fits at an instant: by the largest layer that its stage computes again."""
        own, last = int(self._instants.stage[instant]), self._levels[-1]
        others = [stage for stage in range(len(self.counts)) if stage != own]
        fronts = [self._front(stage, instant, last) for stage in others]
        ahead = _Sums(np.zeros(1), np.zeros(1), ())
        for stage, (_, seconds, size) in zip(others, fronts, strict=True):
            ahead = ahead.plus(times[stage] * seconds, size)
        best: tuple[float, Frontier, int, int] | None = None
        for level in self._levels_of[own]:
            front, seconds, size = self._front(own, instant, level)
            levels = [level if stage == own else 0.0 for stage in range(len(self.counts))]
            room = float(self._rooms(levels)[instant]) + self._rounding
            found = ahead.fastest(times[own] * seconds, size, room)
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], front, *found[1:]
        if best is None:
            return None
        least, front, row, place = best
        taken = [each.counts[way] for (each, *_), way in zip(fronts, ahead.parts(row), strict=True)]
        taken.insert(own, front.counts[place])
        return Deal(least, np.concatenate(taken))

    def _front(self, stage: int, instant: int, level: float) -> tuple[Frontier, Floats, Floats]:
        """Ways of a stage, in seconds beyond the fastest and bytes at an instant."""
        held, late = self._instants.held[instant, stage], self._instants.late[instant, stage]
        if late:
            found = self._costs.front(self.counts[stage], level, float(held), float(late))
            return found, found.costs[:, 0], found.costs[:, 1]
        found = self._costs.front(self.counts[stage], level, 1.0, 0.0)
        return found, found.costs[:, 0], held * found.costs[:, 1]

    def ways(self, taken: Integers) -> list[Way]:
        """The stages of a deal."""
        own = np.split(taken, self._starts[1:])
        return [self._costs.timed(counts, tuple(each.tolist())) for counts, each in zip(self.counts, own, strict=True)]


class _Sums(NamedTuple):
    """Undominated ways of several stages together, from the fastest on: arrays of one length."""

    seconds: Floats
    bytes: Floats
    merged: tuple[tuple[Integers, int], ...]
    """For each stage that was added: the places of the ways among all pairs, and how many ways the stage has."""

    def plus(self, seconds: Floats, size: Floats) -> "_Sums":
        """Each with each way of one more stage."""
        if not len(seconds):
            return _Sums(seconds, size, (*self.merged, (np.empty(0, dtype=np.int64), 1)))
        whole, weight = np.add.outer(self.seconds, seconds).ravel(), np.add.outer(self.bytes, size).ravel()
        order = whole.argsort(kind="stable")
        weight = weight[order]
        kept = np.empty(len(weight), dtype=bool)
        kept[0] = True
        np.less(weight[1:], np.minimum.accumulate(weight)[:-1], out=kept[1:])
        places = order[kept]
        return _Sums(whole[places], weight[kept], (*self.merged, (places, len(seconds))))

    def fastest(self, seconds: Floats, size: Floats, room: float) -> tuple[float, int, int] | None:
        """The least seconds with a way of one more stage in so many bytes, the places of both; none if none fits."""
        left = room - size
        # Bytes fall from way to way.
        first = np.searchsorted(-self.bytes, -left)
        fits = np.flatnonzero(first < len(self.bytes))
        if not len(fits):
            return None
        total = self.seconds[first[fits]] + seconds[fits]
        best = int(total.argmin())
        place = int(fits[best])
        return float(total[best]), int(first[place]), place

    def parts(self, row: int) -> list[int]:
        """The place of each stage's way in one of these."""
        found = list[int]()
        for places, count in reversed(self.merged):
            row, way = divmod(int(places[row]), count)
            found.append(way)
        return found[::-1]
