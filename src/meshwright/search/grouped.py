"""Stages that share a group's memory: which of their layers recompute, weighed by what each stage holds at a time.

A group is fullest at some backward of its order. What a layer keeps is there as often as its stage has micro-batches in
flight then, so that a layer of an early stage saves most by recomputing. Each instant alone bounds the time of all
deals from below; the fastest deal of one instant that fits at all others too is the fastest of all.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.cost.memory import in_flight
from meshwright.cost.simulation import Link, StageTime, Timeline, simulate
from meshwright.plan.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Integers, Order, orders
from meshwright.plan.words import Schedule
from meshwright.search.bench import NO_TIME
from meshwright.search.choice import Choice
from meshwright.search.costs import Counts, StageCosts, Way
from meshwright.search.frontier import Floats, Frontier, undominated

_ROUNDS = 4
"""Rounds of micro-batches after which an interleaved order repeats itself."""
_TRIED = 6
"""Instants by which the fastest deal is looked for, before one is mended layer by layer."""
_PASSED_BACK: tuple[Schedule, ...] = ("gpipe", "interleaved")
"""Schedules whose every backward is followed by those of the stages before, and nothing else."""
_ROUNDING = 1e-12
"""Of a device's memory, what sums may differ by."""


class Instants(NamedTuple):
    """The backwards of a group's order at which it may be fullest."""

    stage: Integers
    """[instants]: whose it is, among the group's stages."""
    first: Integers
    last: Integers
    """[instants]: whether it makes the gradients of inputs, and those of weights."""
    held: Floats
    """[instants, stages]: micro-batches in flight."""
    late: Floats
    """[instants, stages]: of those, whose gradients of weights are still to come after that of the input."""
    begun: Floats
    """[instants, stages]: whether there are gradients."""

    @property
    def overlapping(self) -> bool:
        """Whether a stage holds several micro-batches."""
        return bool(self.held.sum(axis=1).max() > self.held.shape[1])


@lru_cache(maxsize=512)
def instants_of(schedule: Schedule, places: tuple[int, ...], micro_batches: int, group: int) -> Instants:
    """Of one group; `places` is that of each stage.

    >>> found = instants_of("interleaved", (0, 1, 0, 1), 8, 0)
    >>> found.stage.tolist(), found.held.tolist()
    ([0, 0, 1, 1], [[4.0, 1.0], [3.0, 2.0], [4.0, 1.0], [3.0, 2.0]])
    """
    repeating = _ROUNDS * (max(places) + 1)
    if schedule == "interleaved" and micro_batches % (max(places) + 1) == 0:
        micro_batches = min(micro_batches, repeating)
    own = np.flatnonzero(np.array(places) == group)
    return _fullest(orders(schedule, places, micro_batches)[group], own)


def _fullest(order: Order, stages: Integers) -> Instants:
    whose = order.stage[:, None] == stages
    first, last = order.does(BACKWARD, INPUT), order.does(BACKWARD, WEIGHT)
    held = np.stack([in_flight(order, own * 1.0) for own in whose.T], axis=1)
    put, done = whose * (order.kind == INPUT)[:, None], whose * (order.kind == WEIGHT)[:, None]
    late = np.cumsum(put, axis=0) - put - (np.cumsum(done, axis=0) - done)
    made = whose * last[:, None]
    begun = (np.cumsum(made, axis=0) - made) > 0
    found, table = list[int](), np.concatenate((held, late, begun), axis=1)
    runs = np.column_stack((np.searchsorted(stages, order.stage), first, last))
    for run in np.unique(runs[order.kind != FORWARD], axis=0):
        rows = np.flatnonzero((runs == run).all(axis=1) & (order.kind != FORWARD))
        found += rows[undominated(-table[rows])].tolist()
    of_stage, makes_first, makes_last = runs[found].T
    return Instants(of_stage, makes_first, makes_last, held[found], late[found] * 1.0, begun[found] * 1.0)


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


class Settled(NamedTuple):
    """What is found of the groups of a choice together."""

    bound: float
    """Seconds that a step takes at least."""
    seconds: float
    """That the best takes."""
    ways: tuple[Way, ...]

    def with_bound(self, bound: float) -> "Settled":
        """Knowing this of the step."""
        return self._replace(bound=max(self.bound, bound))

    def with_step(self, seconds: float, ways: Sequence[Way]) -> "Settled":
        """With these ways, if they are faster."""
        return Settled(self.bound, seconds, tuple(ways)) if seconds < self.seconds else self


class Grouped:
    """The groups of a choice along one cut, each with the fastest way of its stages that is known."""

    def __init__(self, costs: StageCosts, choice: Choice, cuts: Sequence[int]) -> None:
        self._costs, self._choice = costs, choice
        names = list(dict.fromkeys(choice.on))
        self._places = tuple(names.index(name) for name in choice.on)
        self._own = [[stage for stage, name in enumerate(choice.on) if name == group] for group in names]
        """Stages of each group."""
        self._counts = [costs.counts(*pair) for pair in pairwise(cuts)]
        self._fastest = [costs.fastest(each) for each in self._counts]
        self._slowest = [costs.slowest(each) for each in self._counts]
        both = [way.forward + way.backward for way in self._fastest]
        self._both = [sum(both[stage] for stage in own) for own in self._own]
        """Seconds of a micro-batch in each group."""
        self.ways = list(self._fastest)
        self._more = [0.0] * choice.degrees.pp
        """Seconds of a micro-batch beyond those of the fastest ways, at least."""
        self._groups: dict[int, Group] = {}
        """Those that have no room for these."""

    @property
    def free(self) -> bool:
        """Whether all groups have room for the fastest ways."""
        return not self._groups

    @property
    def least(self) -> float:
        """Seconds that a step takes at least: what a group works, after the first stages before its own have passed a
        micro-batch on, and before the last backwards of those; and the end.
        """
        groups, ways, ahead, most = range(self._choice.degrees.pp), self._fastest, 0.0, 0.0
        busy = [self._choice.micro_batches * (self._more[group] + self._both[group]) for group in groups]
        if self._choice.schedule not in _PASSED_BACK:
            return max(busy)
        for group in groups:
            most = max(most, ahead + busy[group])
            ahead += ways[group].forward + ways[group].backward
        return most + self._slowest[0].finish

    def deal(self, group: int, below: float) -> bool:
        """Deals recomputes out to the stages of a group. False where that does not fit, or takes as long as `below`."""
        own = self._own[group]
        instants = instants_of(self._choice.schedule, self._places, self._choice.micro_batches, group)
        found = Group(self._costs, [self._counts[stage] for stage in own], instants)
        if not found.ends:
            return False
        least, deal = found.solve(np.ones(len(own)))
        if deal is None:
            return False
        if (deal.taken != found.fastest).any():
            self._groups[group] = found
            self._more[group] = max(0.0, least - self._hidden(own, np.ones(len(own))))
            for stage, way in zip(own, found.ways(deal.taken), strict=True):
                self.ways[stage] = way
        return self.least < below

    def _hidden(self, own: Sequence[int], times: Floats) -> float:
        """Seconds of the backwards of stages, each so many times, that more computing leaves as they are."""
        hidden = [self._costs.hidden(self._counts[stage]) for stage in own]
        return float(times @ hidden)

    def simulated(self, ways: Sequence[Way]) -> Timeline:
        """A step."""
        times = [StageTime(way.forward, way.backward, optimizer=way.finish, weight=way.weight) for way in ways]
        names, travel = self._choice.on, self._costs.bench.travel
        between = list(enumerate(pairwise(names)))
        links = [Link(stage, stage + 1, *travel.get(pair, NO_TIME)) for stage, pair in between]
        return simulate(orders(self._choice.schedule, self._places, self._choice.micro_batches), times, links)

    def balance(self, below: float, turns: int) -> Settled:
        """The fastest ways that are found for all groups together in so many turns, and seconds that a step takes at
        least, until that is `below`.

        A step is the longest of many chains, each a sum over stages, and at least any mean of them, for which each
        group's fastest deal is found by itself. Means of the longest chains of such deals, the later the heavier, come
        near the one that bounds best (fictitious play: Brown 1951; its weights: Frank and Wolfe 1956).
        """
        ways, best = self.ways, Settled(self.least, np.inf, tuple(self.ways))
        mean, rest = np.zeros(len(ways)), 0.0
        for turn in range(turns):
            step = self.simulated(ways)
            best = best.with_step(step.seconds, ways)
            if self.free:
                return best.with_bound(step.seconds)
            passes, others = self._longest(step, ways)
            share = 2 / (turn + 2)
            mean, rest = mean + share * (passes - mean), rest + share * (others - rest)
            least, ways = self._by_chain(mean)
            best = best.with_bound(rest + least)
            if best.bound >= below:
                break
        return best

    def _longest(self, step: Timeline, ways: Sequence[Way]) -> tuple[Floats, float]:
        """Of the longest chain of a step, how many backwards of each stage it has, and seconds of the rest at least."""
        last, chain = step.longest
        passes = (chain[:, BACKWARD] + chain[:, INPUT]) * 1.0
        hidden = sum(ways[stage].finish - self._slowest[stage].finish for stage in self._own[last])
        return np.array(passes), step.seconds - hidden - float(passes @ [way.backward for way in ways])

    def _by_chain(self, passes: Floats) -> tuple[float, list[Way]]:
        """The fastest deals where each stage's backward counts so many times: seconds that they take at least, and
        ways.
        """
        least, ways = float(passes @ [way.backward for way in self._fastest]), list(self._fastest)
        for group, held in self._groups.items():
            own = self._own[group]
            more, deal = held.solve(passes[own])
            least += max(0.0, more - self._hidden(own, passes[own]))
            found = held.ways(deal.taken) if deal else [self.ways[stage] for stage in own]
            for stage, way in zip(own, found, strict=True):
                ways[stage] = way
        return least, ways
