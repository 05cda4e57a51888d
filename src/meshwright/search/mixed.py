"""Layers of a stage under unlike states and unlike splits: what each may take, and the best ways to deal these out.

On the mesh of an outer choice a layer may have any state and any recompute, and may divide its samples over axes over
which others cut matrices or sequences. Equal layers of a stage take one such division, or two, one after the other;
what changes between neighbours costs is added (`search.changes`). Of each stage the ways are found that no other beats
in time and memory, group of equal layers by group.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, groupby, pairwise, product
from typing import NamedTuple

import numpy as np

from meshwright.model.spec import Layer
from meshwright.search.bench import Bench, Bytes, Seconds
from meshwright.search.changes import Change, Changes, Divides
from meshwright.search.choice import Choice, Option
from meshwright.search.costs import lost_to
from meshwright.search.frontier import Floats, repeated, undominated
from meshwright.search.passing import together
from meshwright.search.problem import Problem
from meshwright.search.room import Room, held_by_stage
from meshwright.search.solve import Solution
from meshwright.search.stages import in_flight, objective, one_f_one_b

_CHECKED = 64
"""Ways of a stage that are looked at for one that fits, the fastest first."""
_ROUNDED = 1e-9


class Taken(NamedTuple):
    """A layer under an option."""

    option: Option
    seconds: Seconds
    bytes: Bytes


class Exposed(NamedTuple):
    """How much of the reduction of gradients a step waits for: of a layer that reads no other, and of the rest."""

    first: float
    others: float

    def of(self, layer: Layer) -> float:
        """Of a layer."""
        return self.others if layer.reads else self.first


_EXPOSED = (Exposed(0.0, 0.0), Exposed(1.0, 1.0), Exposed(1.0, 0.0))


class _Labels(NamedTuple):
    """Ways up to a group of layers that end with one division: (seconds of a step, bytes), and the options so far."""

    costs: Floats
    taken: list[tuple[Option, ...]]


class Mixer:
    """The layers of a choice under 1f1b, each free to take an option of its own."""

    def __init__(self, problem: Problem, choice: Choice, bench: Bench, room: Room) -> None:
        self.problem, self.choice, self.bench, self.room = problem, choice, bench, room
        self.layers, self.count = problem.model.layers, choice.micro_batches
        self.changes, self._contention = Changes(bench), bench.calibration.contention
        self.divisions = divisions(problem, choice)
        self._every: dict[tuple[int, bool], dict[Option, Taken]] = {}
        self.flight = in_flight("1f1b", choice.degrees.pp, 1, self.count).tolist()

    def options(self, layer: Layer) -> dict[Option, Taken]:
        """What a layer may take, with what it costs; equal layers take the same."""
        key = self._kind(layer)
        if key not in self._every:
            self._every[key] = {option: self._taken(layer, option) for option in self._options(layer)}
        return self._every[key]

    def options_of(self, layer: Layer) -> int:
        """How many there are."""
        return sum(1 for _ in self._options(layer))

    def _kind(self, layer: Layer) -> tuple[int, bool]:
        return id(layer.stack), layer is self.layers[-1]

    def _taken(self, layer: Layer, option: Option) -> Taken:
        return Taken(option, self.bench.seconds(layer, option), self.bench.bytes(layer, option))

    def _options(self, layer: Layer) -> Iterator[Option]:
        for divides in self.divisions:
            roles = self.choice.roles("zero1", divides).values()
            states = self.problem.wishes.states if any(role.state for role in roles) else (None,)
            for state, recompute in product(states, self.bench.recomputes(layer)):
                yield Option(state, recompute, divides)

    def better(self, cuts: Sequence[int], options: Sequence[Option]) -> Iterator[Solution]:
        """Ways to deal options out on the same stages that may be faster than the given one, and fit: where the
        reduction of gradients at the end of a step hides, where it does not, and where that of an embedding does not,
        which comes last.
        """
        for exposed in _EXPOSED:
            found = list[Option]()
            for stage, (first, after) in enumerate(pairwise(cuts)):
                found += self._stage(stage, first, after, options[first:after], exposed)
            if tuple(found) != tuple(options):
                yield Solution(self.bound(cuts, found), tuple(cuts), tuple(found))

    def _stage(self, stage: int, first: int, after: int, known: Sequence[Option], exposed: Exposed) -> Sequence[Option]:
        """The fastest way that fits, or the given one."""
        alive, layers = self.flight[stage], self.layers[first:after]
        costs = self._along(layers, known, alive, exposed)
        labels = self._through(layers, alive, exposed, np.array([costs[0], self.room.capacity]))
        order = np.argsort(labels.costs[:, 0], kind="stable")[:_CHECKED].tolist()
        ways = (labels.taken[row] for row in order if labels.costs[row, 0] < costs[0])
        return next((way for way in ways if self.fits(layers, way, alive)), known)

    def _along(self, layers: Sequence[Layer], options: Sequence[Option], alive: float, exposed: Exposed) -> Floats:
        rows = [
            self._row(self.options(layer)[option], alive, exposed.of(layer))
            for layer, option in zip(layers, options, strict=True)
        ]
        changes = (self.count * sum(each) for each in self._between(layers, options))
        found: Floats = np.sum(rows, axis=0) + np.array([sum(changes), 0.0])
        return found

    def _row(self, taken: Taken, alive: float, exposed: float) -> tuple[float, float]:
        """Seconds that a layer adds to a step, where a share of its reductions is exposed, and bytes of its stage."""
        (there, back), states = lost_to(taken.seconds, self._contention), taken.bytes.states
        end = taken.seconds.finish + exposed * taken.seconds.reduce
        resting = states.parameters + states.gradients + states.optimizer
        back += exposed * taken.seconds.backward.reduce
        return self.count * (there + back) + end, resting + alive * taken.bytes.kept.kept

    def _between(self, layers: Sequence[Layer], options: Sequence[Option]) -> list[Change]:
        """The changes from each layer of a stage to the next."""
        return [
            self.changes.into(layer.name, one.divides, other.divides)
            for layer, (one, other) in zip(layers[1:], pairwise(options), strict=True)
        ]

    def _changed(self, layer: Layer, before: Divides, own: Divides) -> float:
        return self.count * sum(self.changes.into(layer.name, before, own))

    def _through(self, layers: Sequence[Layer], alive: float, exposed: Exposed, most: Floats) -> _Labels:
        """The frontier of a stage, group of equal layers by group, by the division that each ends with."""
        ends: dict[Divides, _Labels] = {}
        for place, (_, run) in enumerate(groupby(layers, self._kind)):
            group = list(run)
            found: dict[Divides, list[_Labels]] = {}
            for before, first, last in product(ends or [None], self.divisions, self.divisions):
                if first != last and len(group) == 1:
                    continue
                own = self._dealt(group, (first, last), alive, exposed.of(group[0]), most)
                changed = 0.0 if before is None else self._changed(group[0], before, first)
                ahead = _Labels(np.zeros((1, 2)), [()]) if place == 0 or before is None else ends[before]
                found.setdefault(last, []).append(_beside(ahead, own, changed, most))
            ends = {last: _merged(every) for last, every in found.items()}
        return _merged(list(ends.values()))

    def _dealt(
        self, group: Sequence[Layer], turn: tuple[Divides, Divides], alive: float, exposed: float, most: Floats
    ) -> _Labels:
        """Equal layers, which begin with one division and end with another."""
        first, last = turn
        options = [each for each in self.options(group[0]).values() if each.option.divides in (first, last)]
        costs = np.array([self._row(each, alive, exposed) for each in options])
        front = repeated(costs, len(group), most)
        changed = self._changed(group[-1], first, last) if first != last else 0.0
        ways = [_dealt_out([each.option for each in options], own, first) for own in front.counts.tolist()]
        return _Labels(front.costs + np.array([changed, 0.0]), ways)

    def fits(self, layers: Sequence[Layer], options: Sequence[Option], alive: float) -> bool:
        """Whether a stage has room."""
        sizes = [self.options(layer)[option].bytes for layer, option in zip(layers, options, strict=True)]
        held = held_by_stage([(each.states, each.kept, 1) for each in sizes], self.room.ahead)
        most = self.room.most(held, max(each.again for each in sizes), alive, self.count)
        return sum(each.kept.kept for each in sizes) <= most * (1 + _ROUNDED)

    def bound(self, cuts: Sequence[int], options: Sequence[Option]) -> float:
        """Seconds that a step takes at least."""
        stages = len(cuts) - 1
        terms = [
            self._terms(stage, stages, self.layers[first:after], options[first:after])
            for stage, (first, after) in enumerate(pairwise(cuts))
        ]
        return objective(terms)

    def _terms(
        self, stage: int, stages: int, layers: Sequence[Layer], options: Sequence[Option]
    ) -> tuple[float, float, float]:
        every = [self.options(layer)[option].seconds for layer, option in zip(layers, options, strict=True)]
        changes = self._between(layers, options)
        there = together(each.forward for each in every).least(0.0, self._contention)
        back = together(each.backward for each in every).least(0.0, self._contention)
        there, back = there + sum(each.forward for each in changes), back + sum(each.backward for each in changes)
        end = sum(each.finish for each in every) if stage == 0 else 0.0
        return *one_f_one_b(stage, stages, self.count, there, back), end

    def every(self, cuts: Sequence[int], below: Callable[[], float]) -> Iterator[Solution]:
        """All ways that fit and are not known to take as much as something, the least bound first."""
        found = list[Solution]()
        stages = [self._ways(stage, *pair) for stage, pair in enumerate(pairwise(cuts))]
        for ways in product(*stages):
            bound = objective([terms for terms, _ in ways])
            if bound < below():
                found.append(Solution(bound, tuple(cuts), tuple(chain.from_iterable(way for _, way in ways))))
        yield from sorted(found, key=lambda each: each.bound)

    def _ways(self, stage: int, first: int, after: int) -> list[tuple[tuple[float, float, float], tuple[Option, ...]]]:
        layers = self.layers[first:after]
        every = product(*(self.options(layer) for layer in layers))
        return [
            (self._terms(stage, self.choice.degrees.pp, layers, way), way)
            for way in every
            if self.fits(layers, way, self.flight[stage])
        ]


def divisions(problem: Problem, choice: Choice) -> list[Divides]:
    """Sets of axes over which layers may divide their samples instead of what the choice does with them: none first.

    A degree that is asked for stays. Layers that read more than the one before them all divide alike.
    """
    degrees, wishes = choice.degrees, problem.wishes
    layers, found = problem.model.layers, [Divides()]
    chained = all(layer.reads in ((), (before.name,)) for before, layer in pairwise(layers))
    if choice.apart or degrees.ep > 1 or wishes.dp is not None or wishes.micro_batch is not None or not chained:
        return found
    able = [name for name in ("tp", "ulysses", "cp") if getattr(degrees, name) > 1 and getattr(wishes, name) is None]
    samples = problem.recipe.global_batch // choice.micro_batches // degrees.dp
    every = chain.from_iterable(combinations(able, count) for count in range(1, len(able) + 1))
    even = (kinds for kinds in every if samples % math.prod(getattr(degrees, name) for name in kinds) == 0)
    found += [tuple(piece.axis for piece in choice.pieces if piece.dense in kinds) for kinds in even]
    return found


def _dealt_out(options: Sequence[Option], counts: Sequence[int], first: Divides) -> tuple[Option, ...]:
    """To each layer an option, those of the first division before the others."""
    taken = [option for option, count in zip(options, counts, strict=True) for _ in range(count)]
    return tuple(sorted(taken, key=lambda each: each.divides != first))


def _beside(ahead: _Labels, own: _Labels, changed: float, most: Floats) -> _Labels:
    sums = (ahead.costs[:, None] + own.costs[None]).reshape(-1, 2) + np.array([changed, 0.0])
    within = np.flatnonzero((sums <= most * (1 + _ROUNDED)).all(axis=1))
    kept = within[undominated(sums[within])]
    pairs = (divmod(row, max(1, len(own.taken))) for row in kept.tolist())
    return _Labels(sums[kept], [ahead.taken[one] + own.taken[other] for one, other in pairs])


def _merged(every: Sequence[_Labels]) -> _Labels:
    costs, taken = np.concatenate([each.costs for each in every]), list(chain.from_iterable(x.taken for x in every))
    kept = undominated(costs)
    return _Labels(costs[kept], [taken[row] for row in kept.tolist()])
