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

`tests/cost/test_orders.py` compares each with the table of torch.distributed.pipelining, action by action.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import PlanError
from meshwright.plan.rules_schedule import PLACEMENTS, rounds_fit
from meshwright.plan.spec import Schedule

ActionKind = Literal["forward", "backward", "input", "weight"]
KINDS: tuple[ActionKind, ...] = ("forward", "backward", "input", "weight")
FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
_LETTERS = "FBIW"
"""As torch writes them."""
Integers: TypeAlias = NDArray[np.int64]


class Action(NamedTuple):
    """One micro-batch through one stage, one way."""

    stage: int
    kind: ActionKind
    micro_batch: int


@dataclass(frozen=True, eq=False)
class Order:
    """The actions of one group, in order: three arrays of one length."""

    stage: Integers
    kind: Integers
    """Places in KINDS."""
    micro_batch: Integers

    def __len__(self) -> int:
        return len(self.stage)

    def __iter__(self) -> Iterator[Action]:
        for stage, kind, number in zip(self.stage.tolist(), self.kind.tolist(), self.micro_batch.tolist(), strict=True):
            yield Action(stage, KINDS[kind], number)

    def __str__(self) -> str:
        """As torch writes it: '0F0 0F1 0B0'."""
        return " ".join(f"{action.stage}{_LETTERS[KINDS.index(action.kind)]}{action.micro_batch}" for action in self)


def order_of(actions: Iterable[tuple[int, int, int]]) -> Order:
    """Actions as (stage, place in KINDS, micro-batch) → an order."""
    table = np.array(list(actions), dtype=np.int64).reshape(-1, 3)
    return Order(table[:, 0], table[:, 1], table[:, 2])


@lru_cache(maxsize=256)
def orders(schedule: Schedule, places: tuple[int, ...], micro_batches: int) -> tuple[Order, ...]:
    """The order of each group. `places` is the group's number for each stage, in forward order.

    >>> for order in orders("1f1b", (0, 1), 3): print(order)
    0F0 0F1 0B0 0F2 0B1 0B2
    1F0 1B0 1F1 1B1 1F2 1B2
    >>> print(orders("zb-h1", (0, 1), 2)[1])
    1F0 1I0 1F1 1I1 1W0 1W1

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
    seats = (_Seat(group, groups, len(places) // groups, places, micro_batches) for group in range(groups))
    return tuple(_ORDERS[schedule](seat) for seat in seats)


class _Seat(NamedTuple):
    """A group's place in a pipeline."""

    group: int
    groups: int
    chunks: int
    """Stages on each group."""
    places: tuple[int, ...]
    micro_batches: int

    @property
    def stages(self) -> Integers:
        """Its stages, in forward order."""
        return np.flatnonzero(np.array(self.places) == self.group)

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
    return _in_turns(seat, min(seat.behind, seat.micro_batches), None)


def _interleaved(seat: _Seat) -> Order:
    per_round = _per_round(seat.groups, seat.micro_batches)
    ahead = (seat.chunks - 1) * per_round + 2 * seat.behind
    return _in_turns(seat, min(ahead, seat.chunks * seat.micro_batches), None)


def _zb_h1(seat: _Seat) -> Order:
    return _in_turns(seat, min(seat.behind, seat.micro_batches), seat.group)


def _in_turns(seat: _Seat, ahead: int, late: int | None) -> Order:
    """`ahead` forwards, then a forward and a backward in turns, then the other backwards. Where `late` is given,
    backwards come in halves, and a weight's half that many backwards after its input's.
    """
    total = seat.chunks * seat.micro_batches
    per_round = _per_round(seat.groups, seat.micro_batches) if seat.chunks > 1 else seat.micro_batches
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
    group, behind = seat.group, seat.behind
    return _phased(
        seat,
        (2 * behind, "F0"),
        (group + 1, "F0 F1"),
        (behind, "I1 W F1"),
        (seat.micro_batches - 2 * seat.groups + group + 1, "F0 B1 F1 B0"),
        (behind, "B1 F1 B0"),
        ((group + 1) // 2, "B1 B0"),
        ((group + 1) % 2, "B1 I0"),
        ((group + 1) // 2, "I1 I0"),
        (behind, "W I0"),
        (group + 1, "W"),
    )


def _phased(seat: _Seat, *phases: tuple[int, str]) -> Order:
    """Patterns, each so many times. 'F0' is the next forward of the first of two stages; a 'W' without a stage is the
    oldest that waits.
    """
    stages, next_number = seat.stages.tolist(), dict[str, int]()
    waiting: deque[tuple[int, int]] = deque()
    actions: list[tuple[int, int, int]] = []
    for times, pattern in phases:
        for _ in range(times):
            for token in pattern.split():
                kind = _LETTERS.index(token[0])
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
    return order_of(actions)


def _per_round(groups: int, micro_batches: int) -> int:
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


_CELL = re.compile(r"(\d+)(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d*)")


def read_table(text: str) -> tuple[Order, ...]:
    """A schedule table as torch's pipelining writes it: a line for each group, a cell for each action ('0F1'; pairs as
    '(0F1;1B0)OVERLAP_F_B'), gaps empty. Communication is left out: it follows from the stages.

    >>> [str(order) for order in read_table("0F0,,0B0")]
    ['0F0 0B0']

    Raises PlanError with the line and cell that is none, and where a micro-batch's backward is missing or too early.
    """
    found = [
        order_of(action for cell in line.split(",") for action in _cell(cell, number))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip(" ,")
    ]
    check_orders(found)
    return tuple(found)


def _cell(cell: str, line: int) -> Iterator[tuple[int, int, int]]:
    inner = re.fullmatch(r"\((.*)\)OVERLAP_F_B", cell.strip())
    for piece in inner.group(1).split(";") if inner else [cell]:
        if not piece.strip():
            continue
        match = _CELL.fullmatch(piece.strip())
        if match is None or (match.group(2) in _LETTERS and not match.group(3)):
            raise PlanError(f"schedule table, line {line}: '{piece.strip()[:40]}' is no action; write it like '0F1'")
        if match.group(2) in _LETTERS:
            yield int(match.group(1)), _LETTERS.index(match.group(2)), int(match.group(3))


def check_orders(found: Sequence[Order]) -> None:
    """Raises PlanError where a micro-batch does not go once forward and then once backward through a stage."""
    for group, order in enumerate(found):
        done: dict[tuple[int, int], str] = {}
        for stage, kind, number in order:
            letter, before = _LETTERS[KINDS.index(kind)], done.get((stage, number), "")
            if (before, letter) not in {("", "F"), ("F", "B"), ("F", "I"), ("FI", "W")}:
                raise PlanError(
                    f"schedule, group {group}: {stage}{letter}{number} after {before or 'nothing'} of that micro-batch"
                )
            done[stage, number] = before + letter
        unfinished = next((key for key, letters in done.items() if letters not in ("FB", "FIW")), None)
        if unfinished:
            stage, number = unfinished
            raise PlanError(f"schedule, group {group}: micro-batch {number} of stage {stage} is unfinished")
