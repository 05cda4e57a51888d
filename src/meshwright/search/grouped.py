"""The groups of a pipeline together: recompute that is balanced between them, and what a step takes at least."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.cost.simulation import Link, StageTime, Timeline, simulate
from meshwright.plan.orders import BACKWARD, INPUT, orders
from meshwright.plan.words import Schedule
from meshwright.search.choice import Choice
from meshwright.search.costs import StageCosts, Way
from meshwright.search.frontier import Floats
from meshwright.search.group import Group
from meshwright.search.instants import instants_of

_PASSED_BACK: tuple[Schedule, ...] = ("gpipe", "interleaved")
"""Schedules whose every backward is followed by those of the stages before, and nothing else."""
_NO_TIME = (0.0, 0.0)
"""Of a message that stays on its group."""


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
        self._places = tuple(map(names.index, choice.on))
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
        links = [Link(stage, stage + 1, *travel.get(pair, _NO_TIME)) for stage, pair in between]
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
