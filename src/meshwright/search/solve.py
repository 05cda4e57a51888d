"""One outer choice: the best cut into stages with the best recompute of each layer, by the costs of its layers."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, combinations, pairwise, product
from math import comb, prod
from typing import NamedTuple

import numpy as np

from meshwright.plan.stage_cut import even_counts
from meshwright.search.choice import Choice, Option
from meshwright.search.costs import StageCosts, Way
from meshwright.search.frontier import Floats
from meshwright.search.grouped import Grouped
from meshwright.search.knapsack import compositions
from meshwright.search.stages import StageWays, best_split, in_flight, objective, one_f_one_b

_CLOSE = 1.002
"""A cut is taken as it is found where its objective is so close to what bounds it."""
_LONGEST = 4.0
"""Times all layers for all micro-batches, one after the other: no cut takes as much, whatever it computes again."""
_FINE = 1e-4
"""Of a step, to which a limit is found."""
_SHORT, _LONG = 5, 100
"""Turns that groups which share memory are balanced for, at first, and before a choice is done with."""
MOST = 50_000
"""Plans that are all looked at, where no gap is allowed."""
_FEW = 64
"""Cuts that are all looked at, under schedules whose best is not known without."""


class Solution(NamedTuple):
    """The best that is known of a choice: seconds that its step takes at least, cuts, and the option of each layer."""

    bound: float
    cuts: tuple[int, ...]
    options: tuple[Option, ...]
    seconds: float = 0.0
    """That its own step takes, where that is known."""
    alone: bool = False
    """Whether no other of its choice may be better."""
    rough: bool = False
    """Whether `settle` may find a better one, and bound it closer."""


class Solver:
    """An outer choice under one state of all layers."""

    def __init__(self, costs: StageCosts, choice: Choice) -> None:
        self.costs, self.choice = costs, choice
        self.layers, self.count = costs.layers, choice.micro_batches

    def solve(self, below: float) -> Solution | None:
        """The best cut and recompute, if its bound is below; none where nothing fits."""
        if self.choice.schedule == "1f1b":
            return self._free(below)
        return self._even(below)

    def settle(self, below: float) -> Solution | None:
        """The same where a solution is rough, looked for longer."""
        return self._even(below, _LONG)

    def some(self) -> Solution | None:
        """A good cut and recompute, quickly; none where nothing fits."""
        if self.choice.schedule != "1f1b" or self.choice.stages == 1:
            return self.solve(np.inf)
        flight = self._flight
        _, cuts = self._least_maximum(np.inf, flight)
        return None if cuts is None else Solution(0.0, cuts, self._options(cuts, flight))

    @property
    def _flight(self) -> list[float]:
        """Micro-batches that each stage holds under 1f1b."""
        return list(map(float, in_flight("1f1b", self.choice.stages, 1, self.count)))

    def _free(self, below: float) -> Solution | None:
        """Any cut between numbered layers: first that with the least maximum, which bounds the ranges of the rest."""
        stages, count, flight = self.choice.stages, self.count, self._flight
        if stages == 1:
            way = self._way(0, 0, len(self.layers), flight)
            bound = np.inf if way is None else count * (way.forward + way.backward) + way.finish
            return Solution(bound, self.even, self._options(self.even, flight)) if bound < below else None
        least, cuts = self._least_maximum(below, flight)
        if cuts is None:
            return None
        terms = [self._terms(stage, *pair, flight) for stage, pair in enumerate(pairwise(cuts))]
        value, bound = objective(list(map(tuple, np.concatenate(terms).tolist()))), self._fastest + least
        if value > _CLOSE * bound:
            below = min(below, value)
            ranges = self._ranges(below)
            split = best_split(len(self.layers), stages, self._terms_of(flight), below=below, ranges=ranges or [])
            value, cuts = (split.objective, split.cuts) if split else (value, cuts)
            bound = min(below, value)
        return Solution(bound, cuts, self._options(cuts, flight)) if bound < below or value <= below else None

    def leaves(self) -> list[Solution]:
        """Every cut that is looked at, with every number of layers that take each recompute, from the least bound on;
        none where these are too many to be looked at.
        """
        cuts = self._every_cut()
        if cuts is None or sum(self._ways_along(each) for each in cuts) > MOST:
            return []
        found = chain.from_iterable(map(self._leaves_along, cuts))
        return sorted(found, key=lambda each: each.bound)

    def _every_cut(self) -> list[tuple[int, ...]] | None:
        if self.choice.schedule != "1f1b":
            return self._cuts
        body, inner = self.costs.bench.body, self.choice.stages - 1
        many = comb(body[-1] - body[0], inner) > MOST
        return None if many else list(every_cut(body, inner + 1, len(self.layers)))

    def _ways_along(self, cuts: Sequence[int]) -> int:
        kinds = chain.from_iterable(self.costs.counts(*pair) for pair in pairwise(cuts))
        parts = ((count, len(self.costs.bytes(kind))) for kind, count in kinds)
        return prod(comb(count + options - 1, count) for count, options in parts)

    def _leaves_along(self, cuts: tuple[int, ...]) -> Iterator[Solution]:
        pairs, bound = list(pairwise(cuts)), self._bound_along(cuts)
        for taken in product(*(self._every(*pair) for pair in pairs)):
            staged = list(zip(pairs, taken, strict=True))
            ways = [self.costs.timed(self.costs.counts(*pair), own) for pair, own in staged]
            dealt = (self._dealt(*pair, way.taken) for pair, way in zip(pairs, ways, strict=True))
            yield Solution(bound(ways), cuts, tuple(chain.from_iterable(dealt)))

    def _bound_along(self, cuts: Sequence[int]) -> Callable[[Sequence[Way]], float]:
        """Seconds that a step takes at least by the ways of its stages."""
        if self.choice.schedule == "1f1b":
            return self._objective
        groups = Grouped(self.costs, self.choice, cuts)
        return lambda ways: groups.simulated(ways).seconds

    def _every(self, first: int, after: int) -> list[tuple[int, ...]]:
        """Every number of layers of each kind of a stage that take each recompute."""
        ways = [
            [tuple(row) for row in compositions(count, len(self.costs.bytes(kind))).tolist()]
            for kind, count in self.costs.counts(first, after)
        ]
        return [tuple(chain.from_iterable(each)) for each in product(*ways)]

    def _objective(self, ways: Sequence[Way]) -> float:
        terms = [
            (*one_f_one_b(stage, len(ways), self.count, way.forward, way.backward), way.finish * (stage == 0))
            for stage, way in enumerate(ways)
        ]
        return objective(terms)

    def _way(self, stage: int, first: int, after: int, flight: Sequence[float]) -> Way | None:
        return self.costs.way(self.costs.counts(first, after), flight[stage])

    def _terms(self, stage: int, first: int, after: int, flight: Sequence[float]) -> Floats:
        """As `best_split` wants them."""
        way = self._way(stage, first, after, flight)
        if way is None:
            return np.empty((0, 3))
        both, most = one_f_one_b(stage, self.choice.stages, self.count, way.forward, way.backward)
        return np.array([[both, most, way.finish if stage == 0 else 0.0]])

    def _terms_of(self, flight: Sequence[float]) -> StageWays:
        return lambda stage, first, after: self._terms(stage, first, after, flight)

    def _least_maximum(self, below: float, flight: Sequence[float]) -> tuple[float, tuple[int, ...] | None]:
        """The least that the largest term can be, from below, and the cut that reaches it but for `_FINE`; no cut where
        that is too much. As a stage with more layers has a larger term, it is found by filling stage after stage up to
        a limit, and halving the range of the limit.
        """
        low, high = 0.0, min(below, _LONGEST * self.count * self._fastest) - self._fastest
        cuts = self._filled(high, flight)
        if cuts is None:
            return high, None
        while high - low > _FINE * (self._fastest + high):
            middle = (low + high) / 2
            found = self._filled(middle, flight)
            if found is None:
                low = middle
            else:
                cuts = found
                high = min(middle, max(float(self._terms(*each, flight)[0, 1]) for each in _stages(found)))
        return low, cuts

    def _filled(self, limit: float, flight: Sequence[float]) -> tuple[int, ...] | None:
        """Stages with as many layers as they can take within a limit of their term; none where some are left."""
        body, stages, total = self.costs.bench.body, self.choice.stages, len(self.layers)
        cuts = [0]
        for stage in range(stages - 1):
            here = stage, cuts[-1]
            weight = self._weights[stage]
            most = int(np.searchsorted(weight, weight[cuts[-1]] + limit, side="right")) - 1
            most = min(most, body[-1] - (stages - 2 - stage))  # each later stage has a numbered layer
            least = max(cuts[-1] + 1, body[0] + 1)
            after = last_true(lambda place: self._within(limit, *here, place, flight), least, most)  # noqa: B023
            if after < least:
                return None
            cuts.append(after)
        last = self._within(limit, stages - 1, cuts[-1], total, flight)
        return (*cuts, total) if last else None

    @cached_property
    def _weights(self) -> list[Floats]:
        """For each stage, what layers up to each place add to its term at least."""
        both, forward = (np.concatenate(([0.0], np.cumsum(each))) for each in self._least_times)
        stages, rest = self.choice.stages, self.count - 1
        return [rest * both - min(stages - 1 - stage, rest) * forward for stage in range(stages)]

    def _within(self, limit: float, stage: int, first: int, after: int, flight: Sequence[float]) -> bool:
        terms = self._terms(stage, first, after, flight)
        return len(terms) > 0 and bool(terms[0, 1] <= limit)

    @property
    def _fastest(self) -> float:
        """Seconds of all layers for a micro-batch, at least."""
        return sum(self._least_times[0])

    @cached_property
    def even(self) -> tuple[int, ...]:
        """The cut into as many numbered layers on each stage, or nearly so."""
        if self.choice.stages == 1:
            return 0, len(self.layers)
        body = self.costs.bench.body
        starts = [*body, body[-1] + 1]
        ends = np.cumsum(even_counts(len(body), self.choice.stages))[:-1]
        return (0, *(starts[end] for end in ends.tolist()), len(self.layers))

    def _ranges(self, below: float) -> list[tuple[int, int]] | None:
        """Where each stage but the last may end, so that no stage alone takes the step to `below`; none: nowhere.

        What stands before and after the numbered layers stays with the first and the last of them.
        """
        if self.choice.stages == 1:
            return []
        body = self.costs.bench.body
        weights, room = self._weights, below - self._fastest
        most = [0]
        for weight in weights[:-1]:
            reached = int(np.searchsorted(weight, weight[most[-1]] + room)) - 1
            most.append(min(reached, body[-1], len(self.layers) - 1))
        least = [len(self.layers)]
        for weight in reversed(weights[1:]):
            least.append(int(np.searchsorted(weight, weight[least[-1]] - room, side="right")))
        ranges = [(max(low, body[0] + 1), high) for low, high in zip(least[:0:-1], most[1:], strict=True)]
        return ranges if all(low <= high for low, high in ranges) else None

    @cached_property
    def _least_times(self) -> tuple[list[float], list[float]]:
        """Seconds of each layer both ways, and of forward, at least."""
        costs = [self.costs.seconds(kind) for kind in range(len(self.costs.first))]
        both = [cost.forward.compute + cost.backward.compute for cost in costs]
        return [both[kind] for kind in self.costs.kinds], [costs[kind].forward.compute for kind in self.costs.kinds]

    def _options(self, cuts: Sequence[int], flight: Sequence[float]) -> tuple[Option, ...]:
        found: list[Option] = []
        for (first, after), alive in zip(pairwise(cuts), flight, strict=True):
            way = self.costs.way(self.costs.counts(first, after), alive)
            assert way is not None, "the cut is of stages that fit"
            found += self._dealt(first, after, way.taken)
        return tuple(found)

    def _dealt(self, first: int, after: int, taken: Sequence[Sequence[int]]) -> list[Option]:
        """To each layer an option, those that save most memory first."""
        kinds = [kind for kind, _ in self.costs.counts(first, after)]
        rows = {
            kind: [
                Option(self.costs.state, name)
                for name, count in zip(self.costs.bench.recomputes(self.costs.first[kind]), own, strict=True)
                for _ in range(count)
            ]
            for kind, own in zip(kinds, taken, strict=True)
        }
        return [rows[self.costs.kinds[place]].pop(0) for place in range(first, after)]

    def _even(self, below: float, turns: int = _SHORT) -> Solution | None:
        """The best of some cuts: even ones alone where a group has several stages."""
        best: Solution | None = None
        least = np.inf
        for cuts in self._cuts:
            found = self._along(cuts, below, turns)
            if found is not None:
                least = min(least, found.bound)
                best = min(best or found, found, key=lambda each: each.seconds)
        return best and best._replace(bound=least, alone=best.alone and len(self._cuts) == 1)

    @cached_property
    def _cuts(self) -> list[tuple[int, ...]]:
        """That a schedule other than 1f1b is looked at with."""
        choice, body, total = self.choice, self.costs.bench.body, len(self.layers)
        if choice.stages > len(set(choice.on)) or choice.stages == 1:
            return [self.even]
        if comb(body[-1] - body[0], choice.stages - 1) <= _FEW:
            return list(every_cut(body, choice.stages, total))
        _, balanced = self._least_maximum(np.inf, [1.0] * choice.stages)
        return list(dict.fromkeys(filter(None, (self.even, balanced))))

    def _along(self, cuts: tuple[int, ...], below: float, turns: int) -> Solution | None:
        """Of a cut, the fastest recompute of each group by itself; none where it does not fit, or takes as long as
        `below` at least.
        """
        groups = Grouped(self.costs, self.choice, cuts)
        if groups.least >= below or not all(groups.deal(group, below) for group in range(self.choice.degrees.pp)):
            return None
        found = groups.balance(below, turns)
        if found.bound >= below:
            return None
        pairs = zip(pairwise(cuts), found.ways, strict=True)
        options = tuple(option for pair, way in pairs for option in self._dealt(*pair, way.taken))
        return Solution(found.bound, cuts, options, found.seconds, alone=groups.free, rough=not groups.free)


def every_cut(body: Sequence[int], stages: int, total: int) -> Iterator[tuple[int, ...]]:
    """Every cut of so many layers between numbered ones, which stand at the places of `body`.

    >>> list(every_cut([1, 2, 3], 2, 5))
    [(0, 2, 5), (0, 3, 5)]
    """
    inner = range(body[0] + 1, body[-1] + 1) if stages > 1 else ()
    return ((0, *chosen, total) for chosen in combinations(inner, stages - 1))


def last_true(holds: Callable[[int], bool], least: int, most: int) -> int:
    """The last place up to which something holds that ends once, looked for from the far end; `least` - 1 for nowhere.

    >>> [last_true(lambda place: place <= end, 3, 40) for end in (2, 3, 17, 39, 50)]
    [2, 3, 17, 39, 40]
    """
    after, step = most, 1
    while after >= least and not holds(after):
        most, after, step = after, after - step, 2 * step
    after = max(after, least - 1)
    if after == most:
        return after
    return after + bisect_left(range(after + 1, most), True, key=lambda place: not holds(place))


def _stages(cuts: Sequence[int]) -> list[tuple[int, int, int]]:
    """(stage, first layer, layer after the last) of each stage."""
    return [(stage, *pair) for stage, pair in enumerate(pairwise(cuts))]
