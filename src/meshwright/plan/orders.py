"""In which order a device works: the schedules of pipelines, as arrays.

An order lists the actions of one group of devices, whose stages may be several. Actions are forwards, backwards, and
the two halves of a backward: for the gradient of the input (what the stage before waits for) and for those of the
weights (what nobody waits for), which zero-bubble schedules put into the gaps (Qi 2023).

    gpipe        all forwards, then all backwards (Huang 2019)
    1f1b         as many forwards ahead as stages follow, then one of each in turns (Narayanan 2019, section 3.2)
    interleaved  the same over several stages of a group, in rounds (Narayanan 2021, section 2.2)
    zb-h1        1f1b with backwards in halves; those of the weights come late (Qi 2023, section 2.1)
    zbv          two stages of a group as a V, halves throughout (Qi 2023, section 6)
    dualpipev    the V of DualPipe: a forward beside each backward (DeepSeek-AI 2024, section 3.2.1)

`tests/plan/test_orders.py` compares each with the table of torch.distributed.pipelining, action by action.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import PlanError
from meshwright.plan.rules_schedule import PLACEMENTS, rounds_fit
from meshwright.plan.spec import Plan
from meshwright.plan.words import Schedule

ActionKind = Literal["forward", "backward", "input", "weight"]
KINDS: tuple[ActionKind, ...] = ("forward", "backward", "input", "weight")
FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
LETTERS = "FBIW"
"""As torch writes them."""
Integers: TypeAlias = NDArray[np.int64]


class Action(NamedTuple):
    """One micro-batch through one stage, one way."""

    stage: int
    kind: ActionKind
    micro_batch: int


@dataclass(frozen=True, eq=False)
class Order:
    """The actions of one group, in order: three arrays of one length, and which of them run together."""

    stage: Integers
    kind: Integers
    """Places in KINDS."""
    micro_batch: Integers
    joined: Integers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Where a forward stands that runs together with the backward right after it, of another micro-batch."""

    def __len__(self) -> int:
        return len(self.stage)

    def __iter__(self) -> Iterator[Action]:
        for stage, kind, number in zip(self.stage.tolist(), self.kind.tolist(), self.micro_batch.tolist(), strict=True):
            yield Action(stage, KINDS[kind], number)

    def does(self, *kinds: int) -> NDArray[np.bool_]:
        """Which of the actions are of these kinds."""
        return np.array([kind in kinds for kind in range(len(KINDS))])[self.kind]

    def __str__(self) -> str:
        """As torch writes it: '0F0 0F1 0B0'."""
        return " ".join(f"{action.stage}{LETTERS[KINDS.index(action.kind)]}{action.micro_batch}" for action in self)


def order_of(actions: Iterable[tuple[int, int, int]], joined: Iterable[int] = ()) -> Order:
    """Actions as (stage, place in KINDS, micro-batch) → an order. `joined` are the places of forwards of pairs."""
    table = np.array(list(actions), dtype=np.int64).reshape(-1, 3)
    return Order(table[:, 0], table[:, 1], table[:, 2], np.array(list(joined), dtype=np.int64))


def one_by_one(order: Order) -> Order:
    """The same actions, none of them together."""
    return Order(order.stage, order.kind, order.micro_batch)


@lru_cache(maxsize=256)
def orders(
    schedule: Schedule, places: tuple[int, ...], micro_batches: int, *, pairs: bool = False
) -> tuple[Order, ...]:
    """The order of each group. `places` is the group's number for each stage, in forward order. With `pairs`, forwards
    run together with backwards where the schedule makes that possible (`rules_schedule.makes_pairs`).

    >>> for order in orders("1f1b", (0, 1), 3): print(order)
    0F0 0F1 0B0 0F2 0B1 0B2
    1F0 1B0 1F1 1B1 1F2 1B2
    >>> print(orders("zb-h1", (0, 1), 2)[1])
    1F0 1I0 1F1 1I1 1W0 1W1
    >>> for order in orders("1f1b", (0,), 3, pairs=True): print(order, order.joined)
    0F0 0F1 0B0 0F2 0B1 0B2 [1 3]

    Raises PlanError where the stages do not lie as the schedule wants, or the micro-batches are too few or do not
    divide into its rounds: what the rules of a plan say with a fix.
    """
    on = [str(place) for place in places]
    lies, words = PLACEMENTS[schedule]
    if on != lies(on):
        raise PlanError(f"schedule: {schedule} needs {words}; the stages lie on groups {' '.join(on[:12])}")
    groups = max(places) + 1
    if schedule == "interleaved" and not rounds_fit(micro_batches, groups):
        raise PlanError(f"micro_batches: {micro_batches} make no equal rounds over {groups} groups")
    if schedule == "dualpipev" and micro_batches < 2 * groups:
        raise PlanError(f"micro_batches: dualpipev needs as many as stages, {2 * groups} (got {micro_batches})")
    stages = [np.flatnonzero(np.array(places) == group) for group in range(groups)]
    seats = (_Seat(group, groups, stages[group], micro_batches, pairs) for group in range(groups))
    return tuple(_ORDERS[schedule](seat) for seat in seats)


class _Seat(NamedTuple):
    """A group's place in a pipeline."""

    group: int
    groups: int
    stages: Integers
    """Its own, in forward order."""
    micro_batches: int
    pairs: bool

    @property
    def chunks(self) -> int:
        """Its number of stages."""
        return len(self.stages)

    @property
    def behind(self) -> int:
        """Groups after it."""
        return self.groups - 1 - self.group


def _gpipe(seat: _Seat) -> Order:
    numbers, stages = np.arange(seat.micro_batches), seat.stages
    there, count = np.repeat(stages, len(numbers)), len(stages) * len(numbers)
    back = np.repeat(stages[::-1], len(numbers))
    kinds = np.repeat([FORWARD, BACKWARD], count)
    return Order(np.concatenate((there, back)), kinds, np.tile(numbers, 2 * len(stages)))


def _one_each(seat: _Seat) -> Order:
    if seat.pairs and seat.groups == 1:
        return _paired(seat, 0)
    return _in_turns(seat, min(seat.behind, seat.micro_batches), None)


def _interleaved(seat: _Seat) -> Order:
    per_round = round_size(seat.groups, seat.micro_batches)
    ahead = (seat.chunks - 1) * per_round + 2 * seat.behind
    if seat.pairs:
        return _paired(seat, ahead)
    return _in_turns(seat, min(ahead, seat.chunks * seat.micro_batches), None)


def _zb_h1(seat: _Seat) -> Order:
    return _in_turns(seat, min(seat.behind, seat.micro_batches), seat.group)


def _in_turns(seat: _Seat, ahead: int, late: int | None) -> Order:
    """`ahead` forwards, then a forward and a backward in turns, then the other backwards. Where `late` is given,
    backwards come in halves, and a weight's half that many backwards after its input's.
    """
    total = seat.chunks * seat.micro_batches
    per_round = round_size(seat.groups, seat.micro_batches) if seat.chunks > 1 else seat.micro_batches
    turn = np.arange(total)
    chunk = turn // per_round % seat.chunks
    number = turn // (per_round * seat.chunks) * per_round + turn % per_round
    there, back = seat.stages[chunk], seat.stages[::-1][chunk]
    # When each comes, in steps of three: a forward, a backward, weights.
    steps = [(turn - ahead) * 3, turn * 3 + 1]
    stages, kinds = [there, back], [np.full(total, FORWARD), np.full(total, BACKWARD if late is None else INPUT)]
    if late is not None:
        steps.append(np.where(turn + late < total, (turn + late) * 3 + 2, total * 3 + turn))
        stages.append(back)
        kinds.append(np.full(total, WEIGHT))
    by_time = np.argsort(np.concatenate(steps), kind="stable")
    numbers = np.concatenate([number] * len(steps))
    return Order(np.concatenate(stages)[by_time], np.concatenate(kinds)[by_time], numbers[by_time])


def _paired(seat: _Seat, ahead: int) -> Order:
    """Forwards and backwards in turns as pairs, with one more forward ahead than without: a backward can run together
    with the next forward, never with its own (Megatron-Core, combined_1f1b.py: one more warm-up micro-batch).
    """
    total = seat.chunks * seat.micro_batches
    first = min(ahead + 1, total)
    return replace(_in_turns(seat, first, None), joined=np.arange(first, 2 * total - first, 2))


def _zbv(seat: _Seat) -> Order:
    """Written for enough micro-batches to fill the pipeline; those beyond the wanted ones are left out."""
    groups, group = seat.groups, seat.group
    count = max(2 * groups - 1, seat.micro_batches)
    return _phased(
        seat,
        (2 * seat.behind + 1, "F0"),
        (group, "F1 F0"),
        (seat.behind + 1, "F1 I1 W1"),
        (count - 2 * groups + group + 1, "F0 I0 W0 F1 I1 W1"),
        (seat.behind, "I0 W0 F1 I1 W1"),
        (group, "I0 I1"),
        (seat.behind + 1, "I0 W0"),
        (group, "W1"),
        (group, "W0"),
    )


def _dualpipev(seat: _Seat) -> Order:
    """The last group does not pair its first forward and backward in turns: the bubble is shorter so (torch)."""
    group, behind = seat.group, seat.behind
    turns, apart = seat.micro_batches - 2 * seat.groups + group + 1, int(behind == 0)
    order = _phased(
        seat,
        (2 * behind, "F0"),
        (group + 1, "F0 F1"),
        (behind, "I1 W F1"),
        (apart, "F0 B1 F1+B0"),
        (turns - apart, "F0+B1 F1+B0"),
        (behind, "B1 F1+B0"),
        ((group + 1) // 2, "B1 B0"),
        ((group + 1) % 2, "B1 I0"),
        ((group + 1) // 2, "I1 I0"),
        (behind, "W I0"),
        (group + 1, "W"),
    )
    return order if seat.pairs else one_by_one(order)


def _phased(seat: _Seat, *phases: tuple[int, str]) -> Order:
    """Patterns, each so many times. 'F0' is the next forward of the first of two stages; a 'W' without a stage is the
    oldest that waits; 'F0+B1' run together.
    """
    stages, next_number = seat.stages.tolist(), dict[str, int]()
    waiting: deque[tuple[int, int]] = deque()
    actions: list[tuple[int, int, int]] = []
    joined: list[int] = []
    for times, pattern in phases:
        for _ in range(times):
            for token in pattern.replace("+", " + ").split():
                if token == "+":
                    joined.append(len(actions) - 1)
                    continue
                kind = LETTERS.index(token[0])
                if kind == WEIGHT:
                    chunk, number = next(item for item in waiting if token in ("W", f"W{item[0]}"))
                    waiting.remove((chunk, number))
                else:
                    chunk, key = int(token[1]), ("F" if kind == FORWARD else "B") + token[1]
                    number = next_number.get(key, 0)
                    next_number[key] = number + 1
                    if kind == INPUT:
                        waiting.append((chunk, number))
                if number < seat.micro_batches:
                    actions.append((stages[chunk], kind, number))
    return order_of(actions, joined)


def round_size(groups: int, micro_batches: int) -> int:
    """Micro-batches that a group takes through a stage before it takes them through its next."""
    return micro_batches // max(1, micro_batches // groups)


_ORDERS: dict[str, Callable[[_Seat], Order]] = {
    "gpipe": _gpipe,
    "1f1b": _one_each,
    "interleaved": _interleaved,
    "zb-h1": _zb_h1,
    "zbv": _zbv,
    "dualpipev": _dualpipev,
}
"""Schedule → the order of one group. `plan.rules_schedule` says how the stages have to lie."""


def orders_of(plan: Plan) -> dict[str, Order]:
    """The order of each group of a plan, by its name, in the order of their first stages. Raises as `orders` does."""
    names = list(dict.fromkeys(stage.on for stage in plan.stages))
    places = tuple(names.index(stage.on) for stage in plan.stages)
    return dict(zip(names, orders(plan.schedule, places, plan.micro_batches), strict=True))
