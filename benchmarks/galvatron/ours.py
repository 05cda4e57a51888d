"""The best plan of all tasks of a setting, by our frontiers (`meshwright.search`): the adapter from tables to them.

The layers of a stage are equal, so a plan deals strategies out by counts. Each task and embedding strategy gets a bound
from its relaxed stages (`search.relaxed`); in the order of these bounds, those that could beat the best plan so far are
solved on frontiers. Nothing depends on a grid of memory.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from galvatron.events import FORWARD, simulated_seconds
from galvatron.formula import Choice, pipeline_seconds, run_seconds, step_seconds
from galvatron.tables import TIE_BREAK, Floats, Integers, Task
from meshwright.search.relaxed import Hull, bounded_frontier, cheapest

ROOM = 1e-12
"""A relative difference that is none."""


class Answer(NamedTuple):
    """The plan of most samples a second."""

    place: int = -1
    """Of its task; none where nothing fits."""
    choice: Choice | None = None
    seconds: float = np.inf
    """Of its step."""
    rate: float = 0.0
    """Samples a second."""
    bound: float = 0.0
    """No plan makes more."""
    solved: int = 0
    """Tasks with an embedding strategy that were not ruled out by their bounds."""


class Solved(NamedTuple):
    """The best plan of one task and embedding strategy, and a bound of its seconds."""

    choice: Choice | None
    """None where it would not be shorter than asked for."""
    bound: float


Bounds: TypeAlias = Callable[["Relaxed"], Floats]
Solve: TypeAlias = Callable[["Relaxed", int, float], Solved]
Seconds: TypeAlias = Callable[[Task, Choice], float]


class Relaxed:
    """A task whose layers may be divided."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.room = (task.budget - task.other).astype(float)
        self.sizes = task.memory.astype(float)
        columns = zip(self.sizes, task.stages, self.room.T, strict=True)
        bounds = [Hull(task.nosync, size).bounds(layers, room) for size, layers, room in columns]
        self.plain = np.column_stack(bounds) + task.embed_nosync
        """The least seconds of a micro-batch at each stage [E, P]."""
        self.step = (task.micro_batches - 1) * task.nosync + task.sync
        """Seconds of a layer in a step that is reduced after its last micro-batch [S]."""
        alone = Hull(self.step, self.sizes[0]).bounds(task.stages[0], self.room[:, 0])
        self.first = alone + (task.micro_batches - 1) * task.embed_nosync[:, 0]
        """The least seconds that the first stage takes by itself, as far as Galvatron's formula counts them [E]."""
        self.quickest: dict[tuple[int, float, bytes, bytes], Integers] = {}
        """What was found for a stage with so much room: embedding strategies differ at the first and the last alone."""


def by_formula(tasks: Sequence[Task]) -> Answer:
    """The best plan under Galvatron's formula."""
    return _best(tasks, _formula_bounds, _solved_for_formula, step_seconds)


def by_events(tasks: Sequence[Task]) -> Answer:
    """The best plan that we find under simulation, where each task and embedding strategy has one to be simulated."""
    return _best(tasks, _events_bounds, _solved_for_events, simulated_seconds)


def _best(tasks: Sequence[Task], bounds: Bounds, solve: Solve, seconds_of: Seconds) -> Answer:
    """Solve the most promising until no other can be better."""
    relaxed = [Relaxed(task) for task in tasks]
    rates = sorted(
        (
            (task.batch / bound, place, embed)
            for place, task in enumerate(tasks)
            for embed, bound in enumerate(bounds(relaxed[place]).tolist())
            if np.isfinite(bound)
        ),
        reverse=True,
    )
    best, proven, solved = Answer(), 0.0, 0
    for bound, place, embed in rates:
        if bound <= best.rate * (1 + ROOM):
            break
        task, solved = tasks[place], solved + 1
        found = solve(relaxed[place], embed, task.batch / best.rate if best.rate else np.inf)
        proven = max(proven, task.batch / found.bound)
        seconds = np.inf if found.choice is None else seconds_of(task, found.choice)
        if task.batch / seconds > best.rate:
            best = Answer(place, found.choice, seconds, task.batch / seconds)
    left = [bound for bound, _, _ in rates[solved : solved + 1]]
    return best._replace(bound=max([best.rate, proven, *left]), solved=solved)


def _formula_bounds(relaxed: Relaxed) -> Floats:
    """Of each embedding strategy: the run is the longer the longer the stages are, and no step is shorter than what the
    first stage takes by itself."""
    return _where_finite(relaxed, run_seconds, relaxed.first)


def _events_bounds(relaxed: Relaxed) -> Floats:
    """The same of the simulated seconds."""
    return _where_finite(relaxed, one_each_bound, relaxed.first + relaxed.task.embed_sync[:, 0])


def _where_finite(relaxed: Relaxed, bound: Callable[[Floats, int], Floats], alone: Floats) -> Floats:
    """The larger of this bound of all stages and that of the first, where all stages fit."""
    fit = np.asarray(np.isfinite(relaxed.plain).all(axis=1))
    found = np.full(len(fit), np.inf)
    found[fit] = np.maximum(bound(relaxed.plain[fit], relaxed.task.micro_batches), alone[fit])
    return found


def one_each_bound(seconds: Floats, micro_batches: int, forward: float = FORWARD) -> Floats:
    """A bound of the seconds of 1f1b over stages of so many seconds a micro-batch [..., P], of which at most the share
    `forward` is forward, for P micro-batches or more.

    Stage i runs P - i forwards before its first backward, which comes when a micro-batch has gone down to the last
    stage and back; then it has M backwards and the other forwards to do, and the last backward goes all the way back:

        sum of c + (M - 1) c_i - (P - 1 - i) f_i                        for every i.

    From its first backward to its last forward it does M - P + i of both, and then the last micro-batch goes down to
    the end and all the way back:

        sum of c + (M - P + i) c_i + (sum of c after i).

    By itself it does M of both after the first forward has come and before the last backward has gone. All are exact
    for equal stages but the last.

    >>> float(one_each_bound(np.array([3.0, 3.0]), 4)), round(float(one_each_bound(np.array([4.0, 2.0]), 4)), 3)
    (15.0, 16.667)
    """
    stages, before = seconds.shape[-1], np.cumsum(seconds, axis=-1)
    total, place = before[..., -1:], np.arange(stages)
    first = total + (micro_batches - 1 - (stages - 1 - place) * forward) * seconds
    through = total + (micro_batches - stages + place) * seconds + total - before
    own = before + (micro_batches - 1) * seconds
    return np.asarray(np.maximum(np.maximum(first, through), own).max(axis=-1))


def _solved_for_formula(relaxed: Relaxed, embed: int, below: float) -> Solved:
    """The formula counts the first stage's reduction, so of that stage what matters is undominated in two things; where
    the least of one of them makes the step, that is the best. Of the other stages the quickest (a reduction of theirs
    would have to last longer than a micro-batch of all stages before it).
    """
    task, fixed = relaxed.task, float(relaxed.task.embed_nosync[embed, 0])
    others = _others(relaxed, embed, below, run_seconds)
    if others.counts is None:
        return Solved(None, below)
    ways = np.array([_quickest(relaxed, embed, 0, costs) for costs in (task.nosync, relaxed.step)])
    others.plain[0] = task.nosync @ ways[0] + fixed
    alone = float(relaxed.step @ ways[1]) + (task.micro_batches - 1) * fixed
    least = max(float(run_seconds(others.plain, task.micro_batches)), alone)
    if least >= below:
        return Solved(None, below)
    seconds = _formula(relaxed, embed, ways, others)
    if seconds.min() > least * (1 + ROOM):
        columns, most = _columns_of_first(relaxed, embed, others.plain, min(below, seconds.min() * (1 + ROOM)))
        ways = bounded_frontier(columns, relaxed.sizes[0], task.stages[0], relaxed.room[embed, 0], most)[1]
        if not len(ways):
            return Solved(None, below)
        seconds = _formula(relaxed, embed, ways, others)
    return Solved(_choice(task, embed, [ways[int(seconds.argmin())], *others.counts]), float(seconds.min()))


def _columns_of_first(relaxed: Relaxed, embed: int, plain: Floats, seconds: float) -> tuple[Floats, Floats]:
    """What the formula takes of the first stage's layers, and the most of it in a step of so many seconds: a
    micro-batch without and with reduction; where there is no other stage, these come in as m micro-batches or m - 1 and
    the reduced one."""
    task, fixed = relaxed.task, float(relaxed.task.embed_nosync[embed, 0])
    most = _most_of_first(plain, task.micro_batches, seconds) - fixed
    if len(task.stages) > 1:
        return np.column_stack((task.nosync, task.sync)), np.array([most, np.inf])
    return np.column_stack((task.nosync, relaxed.step)), np.array([most, seconds - (task.micro_batches - 1) * fixed])


class _Others(NamedTuple):
    """All stages but the first, each at its quickest."""

    counts: list[Integers] | None
    """None where the pipeline cannot be as short as wanted."""
    plain: Floats
    """Seconds of a micro-batch at each stage, at the first its bound."""


def _others(relaxed: Relaxed, embed: int, below: float, bound: Callable[[Floats, int], Floats]) -> _Others:
    """From the last on, until they are too long for less than `below`."""
    task, plain = relaxed.task, relaxed.plain[embed].copy()
    counts = list[Integers]()
    for place in range(len(task.stages) - 1, 0, -1):
        counts.insert(0, _quickest(relaxed, embed, place, task.nosync))
        plain[place] = task.nosync @ counts[0] + task.embed_nosync[embed, place]
        if bound(plain, task.micro_batches) >= below:
            return _Others(None, plain)
    return _Others(counts, plain)


def _formula(relaxed: Relaxed, embed: int, ways: Integers, others: _Others) -> Floats:
    """Galvatron's seconds of each way of the first stage beside the others."""
    task = relaxed.task
    plain = np.tile(others.plain, (len(ways), 1))
    plain[:, 0] = ways @ task.nosync + task.embed_nosync[embed, 0]
    counts = others.counts or []
    synced = np.column_stack((ways @ task.sync, *(np.full(len(ways), task.sync @ each) for each in counts)))
    return pipeline_seconds(plain, synced, task.micro_batches)


def _most_of_first(plain: Floats, micro_batches: int, seconds: float) -> float:
    """The longest micro-batch of the first stage in a run of so many seconds, the other stages as they are."""
    rest, stages = float(plain[1:].sum()), len(plain)
    turns = max(0, micro_batches + 1 - stages)
    alone = seconds / (min(stages - 1, micro_batches - 1) + turns)
    if stages == 1:
        return alone
    by_last = seconds - rest - float(plain[-1]) * (micro_batches - 1)
    return min(by_last, alone, (seconds - rest) / turns if turns else np.inf)


def _solved_for_events(relaxed: Relaxed, embed: int, below: float) -> Solved:
    """Of each stage what is quickest, changes between neighbours included; of the first with its reduction, which comes
    last. A change costs the same however many layers it stands between, so one is weighed against none.
    """
    task = relaxed.task
    others = _others(relaxed, embed, below, one_each_bound)
    if others.counts is None:
        return Solved(None, below)
    mixed = [_quickest(relaxed, embed, 0, relaxed.step), *others.counts]
    chosen = [_weighed(relaxed, embed, place, counts) for place, counts in enumerate(mixed)]
    alone = float(relaxed.first[embed] + task.embed_sync[embed, 0])
    return Solved(_choice(task, embed, chosen), max(float(one_each_bound(others.plain, task.micro_batches)), alone))


def _weighed(relaxed: Relaxed, embed: int, place: int, counts: Integers) -> Integers:
    """The same or, where nothing has to move, what is quicker so."""
    task, costs = relaxed.task, relaxed.task.nosync if place else relaxed.step / relaxed.task.micro_batches
    if not _changes(task, counts):
        return counts
    found = [counts, *_unmixed(relaxed, embed, place, costs)]
    return min(found, key=lambda each: float(costs @ each) + 2 * _changes(task, each))


def _unmixed(relaxed: Relaxed, embed: int, place: int, costs: Floats) -> list[Integers]:
    """The quickest of each set of strategies between which nothing moves, where its layers fit."""
    task, sizes = relaxed.task, relaxed.sizes[place]
    sets = [np.flatnonzero(row) for row in np.unique(task.change <= TIE_BREAK, axis=0)]
    fitting = [kinds for kinds in sets if sizes[kinds].min() * task.stages[place] <= relaxed.room[embed, place]]
    return [_quickest(relaxed, embed, place, costs, kinds) for kinds in fitting]


def _changes(task: Task, counts: Integers) -> float:
    """Seconds that a micro-batch takes each way to move between unlike neighbours of one stage."""
    taken = _in_order(task, np.flatnonzero(counts))
    return sum(float(task.moved[pair]) for pair in pairwise(taken))


def _quickest(relaxed: Relaxed, embed: int, place: int, costs: Floats, kinds: Integers | None = None) -> Integers:
    """How many layers of a stage take each of these strategies so that their costs are least, exactly."""
    allowed = np.arange(len(costs)) if kinds is None else kinds
    layers, room = relaxed.task.stages[place], relaxed.room[embed, place]
    key = place, room, costs.tobytes(), allowed.tobytes()
    if key not in relaxed.quickest:
        found = np.zeros(len(costs), dtype=np.int64)
        found[allowed] = cheapest(costs[allowed], relaxed.sizes[place][allowed], layers, room)
        relaxed.quickest[key] = found
    return relaxed.quickest[key]


def _choice(task: Task, embed: int, counts: Sequence[Integers]) -> Choice:
    """Like strategies next to each other."""
    return Choice(
        embed,
        tuple(tuple(kind for kind in _in_order(task, np.flatnonzero(row)) for _ in range(row[kind])) for row in counts),
    )


def _in_order(task: Task, kinds: Integers) -> list[int]:
    """Those first that move to the first of all without a cost, and so on."""
    return sorted(kinds.tolist(), key=lambda kind: (int((task.change[kind] <= TIE_BREAK).argmax()), kind))
