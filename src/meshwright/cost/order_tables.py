"""Orders from tables: any schedule of a pipeline, action by action, as torch.distributed.pipelining writes it.

A table has a line for each group and a cell for each action: stage, letter, micro-batch ('0F1'), gaps empty. Letters
are F, B (a whole backward), I and W (its halves, for the input and the weights); pairs stand as
'(0F1;1B0)OVERLAP_F_B'. What moves parameters and messages ('0UNSHARD', '0SEND_F1') is left out: it follows from the
stages. Both of torch's formats are understood, `compute_only` and `compute_comms`
(torch.distributed.pipelining.schedules, `_dump_csv` and `_load_csv`, 2.13).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from meshwright.document import read_text
from meshwright.errors import PlanError
from meshwright.plan.orders import BACKWARD, FORWARD, KINDS, LETTERS, Order, order_of
from meshwright.plan.ranks import format_ranks
from meshwright.plan.spec import Plan

_CELL = re.compile(r"(\d{1,7})(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d{0,7})")
_LEGAL = {("", "F"), ("F", "B"), ("F", "I"), ("FI", "W")}
"""What a micro-batch has done on a stage, and what it may do next."""


def read_orders(path: str | Path, plan: Plan) -> tuple[Order, ...]:
    """The orders of a plan's groups, in the order of their first stages, from the file of a table.

    Raises DocumentError where the file cannot be read, PlanError where the table has no meaning or is another plan's.
    """
    return fit_orders(read_table(read_text(path)), plan, str(path))


def read_table(text: str) -> tuple[Order, ...]:
    """The order of each line of a table.

    >>> [str(order) for order in read_table("0F0,,0B0")]
    ['0F0 0B0']

    Raises PlanError with the line and cell that is none, and where a micro-batch's backward is missing or too early.
    """
    found = [_line(line, number) for number, line in enumerate(text.splitlines(), start=1) if line.strip(" ,")]
    check_orders(found)
    return tuple(found)


def _line(line: str, number: int) -> Order:
    actions, joined = list[tuple[int, int, int]](), list[int]()
    for cell in line.split(","):
        found = list(_cell(cell, number))
        if [kind for _, kind, _ in found] == [FORWARD, BACKWARD]:
            joined.append(len(actions))
        actions += found
    return order_of(actions, joined)


def _cell(cell: str, line: int) -> Iterator[tuple[int, int, int]]:
    inner = re.fullmatch(r"\((.*)\)OVERLAP_F_B", cell.strip())
    for piece in inner.group(1).split(";") if inner else [cell]:
        if not piece.strip():
            continue
        match = _CELL.fullmatch(piece.strip())
        if match is None or (match.group(2) in LETTERS and not match.group(3)):
            raise PlanError(f"schedule table, line {line}: '{piece.strip()[:40]}' is no action; write it like '0F1'")
        if match.group(2) in LETTERS:
            yield int(match.group(1)), LETTERS.index(match.group(2)), int(match.group(3))


def check_orders(found: Sequence[Order]) -> None:
    """Raises PlanError where a micro-batch does not go once forward and then once backward through a stage."""
    for group, order in enumerate(found):
        done: dict[tuple[int, int], str] = {}
        for stage, kind, number in order:
            letter, before = LETTERS[KINDS.index(kind)], done.get((stage, number), "")
            if (before, letter) not in _LEGAL:
                raise PlanError(
                    f"schedule, group {group}: {stage}{letter}{number} after {before or 'nothing'} of that micro-batch"
                )
            done[stage, number] = before + letter
        unfinished = next((key for key, letters in done.items() if letters not in ("FB", "FIW")), None)
        if unfinished:
            stage, number = unfinished
            raise PlanError(f"schedule, group {group}: micro-batch {number} of stage {stage} is unfinished")


def fit_orders(found: Sequence[Order], plan: Plan, name: str) -> tuple[Order, ...]:
    """The orders in the sequence of a plan's groups; that of a group is known by its stages.

    Raises PlanError where the stages of a line are those of no group, or a stage has other micro-batches than the plan.
    """
    on = [stage.on for stage in plan.stages]
    groups = [[number for number, other in enumerate(on) if other == group] for group in dict.fromkeys(on)]
    lines = [np.unique(order.stage).tolist() for order in found]
    if sorted(lines) != sorted(groups):
        raise PlanError(f"{name}: its lines have stages {_said(lines)}; the groups of the plan have {_said(groups)}")
    for order in found:
        _check_micro_batches(order, plan.micro_batches, name)
    return tuple(found[lines.index(stages)] for stages in groups)


def _said(lists: Sequence[Sequence[int]], room: int = 12) -> str:
    """[[0, 2], [1, 3]] → '0 2 | 1 3'."""
    return " | ".join(" ".join(map(str, each[:room])) for each in lists[:room])


def _check_micro_batches(order: Order, wanted: int, name: str) -> None:
    forward = order.kind == FORWARD
    for stage in np.unique(order.stage).tolist():
        numbers = np.sort(order.micro_batch[forward & (order.stage == stage)]).tolist()
        if numbers != list(range(wanted)):
            raise PlanError(
                f"{name}: stage {stage} has micro-batches {format_ranks(numbers)}; "
                f"the plan has {format_ranks(range(wanted))}"
            )
