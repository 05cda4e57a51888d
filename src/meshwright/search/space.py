"""The outer choices of a search: every product of degrees that fills the devices, with micro-batches and schedules."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from meshwright.errors import PlanError
from meshwright.model.operators import Attention
from meshwright.plan.degrees import Degrees
from meshwright.plan.refine import shard_nearest
from meshwright.plan.rules import Problem as RuleProblem
from meshwright.plan.rules import check_plan
from meshwright.plan.rules_schedule import rounds_fit
from meshwright.plan.rules_sizes import heads_divide
from meshwright.plan.stage_cut import numbered_layers
from meshwright.plan.words import Schedule
from meshwright.search.bench import one_stage
from meshwright.search.choice import Choice, inputs_of, plain_plan
from meshwright.search.problem import RULES_OF, Problem

MOST_TP = 64
MOST_VIRTUAL = 8
SHORTEST = 256
"""Positions that a rank keeps of a sample at least, where a ring or all-to-all cuts it."""
_WORTH_A_TURN = 0.04
"""Interleaving is tried where 1f1b waits for more than this share of a step."""
MOST_POSITIONS = 2**15
"""Of a micro-batch on one rank, where a sample is shorter: longer products are no faster, and fill memory. A batch that
is one micro-batch may have twice as many: nothing is gathered, nor added up, a second time.
"""
V_SHAPED = ("zbv", "dualpipev")


class Shape(NamedTuple):
    """An outer choice in numbers, without the number of stages of a group."""

    tp: int
    ulysses: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int
    samples: int
    """Of a micro-batch, for each dp rank."""
    micro_batches: int

    @property
    def inner(self) -> "Shape":
        """What the computing of a layer depends on: one replica, or as many as experts spread over."""
        one = self.tp * self.ulysses * self.cp
        dp = math.lcm(one, self.ep * self.etp) // one
        return self._replace(pp=1, dp=dp, micro_batches=self.micro_batches * self.dp // dp)


def shapes(problem: Problem, devices: int) -> Iterator[Shape]:
    """Every shape over so many devices that the wishes allow, but for those that another beats whatever the machine:
    where samples of a micro-batch are several on a rank, and a ring or all-to-all cuts each of them, whole samples on
    each rank are the same work without the exchanges.
    """
    wishes, batch = problem.wishes, problem.recipe.global_batch
    fits, longest = cache(lambda ways: _heads_fit(problem, ways)), _longest(problem)
    for pp in _degrees(devices, wishes.fixed("pp"), most=_most_stages(problem)):
        stage = devices // pp
        for tp in _degrees(stage, wishes.fixed("tp"), most=MOST_TP):
            for ulysses in _degrees(stage // tp, wishes.fixed("ulysses")):
                for cp in _degrees(stage // tp // ulysses, wishes.fixed("cp")) if fits(tp * ulysses) else ():
                    dp = stage // (tp * ulysses * cp)
                    if cp * ulysses > 1 and cp * ulysses * SHORTEST > longest:
                        continue
                    if batch % dp or wishes.fixed("dp") not in (None, dp):
                        continue
                    counts = _samples(problem, dp, cp * ulysses)
                    for ep, etp in _experts(problem, tp, stage):
                        for samples in counts:
                            shape = Shape(tp, ulysses, cp, dp, pp, ep, etp, samples, batch // dp // samples)
                            if _counts(problem, shape):
                                yield shape


def _counts(problem: Problem, shape: Shape) -> bool:
    """Whether a shape is one of those that are asked for, and the system of the scope can be told it."""
    target = problem.wishes.target
    return (problem.only is None or problem.only(shape)) and (target is None or target.admits(shape._asdict()))


def _degrees(devices: int, fixed: int | None, most: float = math.inf) -> list[int]:
    if fixed is not None:
        return [fixed] if devices % fixed == 0 else []
    return [size for size in divisors(devices) if size <= most]


@cache
def divisors(number: int) -> list[int]:
    """In order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return low + [number // size for size in reversed(low) if size * size != number]


def _most_stages(problem: Problem) -> int:
    try:
        return len(numbered_layers(problem.model))
    except PlanError:
        return 1


def _heads_fit(problem: Problem, ways: int) -> bool:
    cores = {op for stack in problem.model.stacks for op in stack.operators if isinstance(op, Attention)}
    return all(heads_divide(core, ways) for core in cores)


def _experts(problem: Problem, tp: int, stage: int) -> Iterator[tuple[int, int]]:
    counts = {part.experts.count for stack in problem.model.stacks for part in stack.parts if part.experts}
    wishes = problem.wishes
    if not counts:
        if (wishes.fixed("ep") or 1) == 1 and wishes.etp in (None, tp):
            yield 1, tp
        return
    for etp in dict.fromkeys((tp, 1)) if wishes.etp is None else (wishes.etp,):
        if tp % etp == 0 and stage % etp == 0:
            for ep in _degrees(stage // etp, wishes.fixed("ep")):
                if math.gcd(*counts) % ep == 0:
                    yield ep, etp


def _samples(problem: Problem, dp: int, cuts: int) -> list[int]:
    """Of a micro-batch on each dp rank, whose samples are cut so many ways."""
    wishes, per_rank = problem.wishes, problem.recipe.global_batch // dp
    asked = wishes.micro_batches or problem.recipe.micro_batches
    if asked is not None:
        return [per_rank // asked] if per_rank % asked == 0 else []
    if wishes.micro_batch is not None:
        return _degrees(per_rank, wishes.micro_batch)
    if problem.only is not None:
        return _degrees(per_rank, None)
    free = all(wishes.fixed(name) is None for name in ("dp", "cp", "ulysses"))
    most = max(1, MOST_POSITIONS // _longest(problem))
    found = _degrees(per_rank, None, most=most)
    found += [per_rank] if most < per_rank <= 2 * most else []
    return [count for count in found if math.gcd(count, cuts) == 1] if free else found


def seeds(problem: Problem, known: Sequence[Shape]) -> list[Shape]:
    """Of shapes, plain ones to begin with: one sample at a time, for each depth of the pipeline tensor parallelism over
    a node or none, experts spread as far as a node or as can be, and the least cuts of a sample that leave the batch to
    divide.
    """
    node = problem.cluster.pools[0].levels[0].size
    found: dict[tuple[int, int, int], Shape] = {}
    for shape in sorted(known, key=lambda each: (each.samples, each.cp * each.ulysses, each.ulysses, each.etp)):
        plain = shape.tp in (1, node) and (shape.ep in (1, node, _MANY) if shape.ep <= _MANY else False)
        if plain and shape.tp * shape.cp * shape.ulysses <= 2 * node:
            found.setdefault((shape.pp, shape.tp, shape.ep), shape)
    return sorted(found.values(), key=lambda each: (-each.ep, each.pp * each.tp))[:_SEEDS]


def shape_of(problem: Problem, choice: Choice) -> Shape:
    """The shape that a choice is of."""
    degrees, count = choice.degrees, choice.micro_batches
    samples = problem.recipe.global_batch // degrees.dp // count
    ways = (degrees.tp, degrees.ulysses, degrees.cp, degrees.dp, degrees.pp, degrees.ep, degrees.etp)
    return Shape(*ways, samples, count)


def neighbours(shape: Shape, known: Sequence[Shape]) -> list[Shape]:
    """Of shapes, those that come from one by moving a factor of two or so from one degree to another, with experts and
    micro-batches as they are or half or twice as many.
    """
    apart = np.abs(np.log2(np.array(known, dtype=float)) - np.log2(np.array(shape, dtype=float)))
    mesh, others = apart[:, :5].sum(axis=1), apart[:, 5:8]
    within = (mesh <= _MOVED) & (others[:, [0, 2]] <= _MOVED / 2).all(axis=1) & (mesh + others[:, 0] + others[:, 2] > 0)
    return [known[place] for place in np.flatnonzero(within).tolist()]


_MOVED = 2 * math.log2(3)
"""What a factor of three, once more and once less, is in doublings."""
_MANY, _SEEDS = 64, 16
"""Ranks that experts spread over at most, and shapes, to begin with."""


def _longest(problem: Problem) -> int:
    """Positions of the longest stream."""
    return max((problem.recipe.length(name, known.length) or 1) for name, known in problem.model.streams.items())


def schedules(problem: Problem, shape: Shape) -> Iterator[tuple[Schedule, int]]:
    """The schedules of a shape, with the stages of each group; interleaved where that saves a share worth having."""
    wishes, layers, pp = problem.wishes, _most_stages(problem), shape.pp
    asked: tuple[Schedule, ...] = (wishes.schedule,) if wishes.schedule else ("1f1b", "interleaved")
    for schedule in (each for each in asked if wishes.target is None or each in wishes.target.schedules):
        if schedule == "interleaved":
            waits = pp > 1 and (wishes.schedule is not None or pp - 1 > _WORTH_A_TURN * shape.micro_batches)
            if waits and rounds_fit(shape.micro_batches, pp):
                most = min(MOST_VIRTUAL, layers // pp)
                yield from ((schedule, v) for v in range(2, most + 1) if wishes.virtual in (None, v))
        elif schedule in V_SHAPED:
            if pp > 1 and 2 * pp <= layers and (schedule == "zbv" or shape.micro_batches >= 2 * pp):
                yield schedule, 2
        elif wishes.virtual in (None, 1):
            yield schedule, 1


def realise(problem: Problem, shape: Shape, schedule: Schedule = "1f1b", virtual: int = 1) -> Choice | None:
    """The choice of a shape; none where no mesh serves both layers and experts."""
    degrees = Degrees(
        tp=shape.tp, ulysses=shape.ulysses, cp=shape.cp, pp=shape.pp, ep=shape.ep, etp=shape.etp, dp=shape.dp,
        rank_order="megatron",
    )  # fmt: skip
    try:
        pieces = degrees.mesh()
    except ValueError:
        return None
    return Choice(degrees, pieces, shape.micro_batches, schedule, virtual, sp=problem.wishes.scatters)


def replicated(problem: Problem, choice: Choice) -> Choice | None:
    """The same with states over the ranks of a node alone, and the others replicas of these (HSDP); none where a stage
    lies in a node, or its ranks do not divide so.
    """
    node, degrees = problem.cluster.pools[0].levels[0].size, choice.degrees
    inside = node // degrees.tp
    if degrees.stage <= node or node % degrees.tp or inside < 2 or not problem.wishes.replicates:
        return None
    try:
        return replace(choice, pieces=shard_nearest(choice.pieces, inside))
    except ValueError:
        return None


def means_something(problem: Problem, choice: Choice) -> bool:
    """Whether the rules find a meaning in a choice, by a plan of it without a pipeline."""
    inputs = inputs_of(problem, plain_plan(problem, one_stage(choice)))
    return not any(each.severity == "error" for each in check_plan(inputs))


def problems(problem: Problem, choice: Choice) -> list[RuleProblem]:
    """What the rules of the wanted scope have against it."""
    inputs = inputs_of(problem, plain_plan(problem, one_stage(choice)))
    return [each for each in check_plan(inputs, RULES_OF[problem.wishes.scope]) if each.severity == "error"]
