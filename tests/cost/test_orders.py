"""The schedules' orders, against the tables that torch.distributed.pipelining makes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.orders import check_orders, orders, read_table
from meshwright.errors import PlanError
from meshwright.plan.rules_schedule import PLACEMENTS
from meshwright.plan.spec import Schedule
from tests.cost.build import QUICK

TORCH = {
    "interleaved": "ScheduleInterleaved1F1B",
    "zb-h1": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


def places(schedule: Schedule, groups: int, chunks: int = 2) -> tuple[int, ...]:
    """The stages' groups as a schedule wants them."""
    if schedule in ("zbv", "dualpipev"):
        return (*range(groups), *reversed(range(groups)))
    return tuple(range(groups)) * (chunks if schedule == "interleaved" else 1)


def torch_table(schedule: Schedule, groups: int, chunks: int, micro_batches: int) -> list[str]:
    """What torch's class says, without its gaps, pairs one after the other."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    found = []
    for rank in range(groups):
        one = object.__new__(getattr(schedules, TORCH[schedule]))
        rounds = max(1, micro_batches // groups)
        vars(one).update(
            pp_group_size=groups, n_local_stages=chunks, _n_microbatches=micro_batches, rank=rank,
            _num_stages=groups * chunks, num_stages=groups * chunks,
            number_of_rounds=rounds, microbatches_per_round=micro_batches // rounds,
        )  # fmt: skip
        found.append(" ".join(flat for action in one._calculate_single_rank_operations(rank) for flat in _flat(action)))
    return found


def _flat(action: Any) -> list[str]:
    if action is None:
        return []
    if action.sub_actions:
        return [flat for one in action.sub_actions for flat in _flat(one)]
    return [] if str(action).endswith("REDUCE_GRAD") else [str(action)]


@pytest.mark.parametrize("groups", range(1, 6))
@pytest.mark.parametrize(
    ("schedule", "chunks"), [("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zbv", 2), ("dualpipev", 2)]
)
def test_orders_are_those_of_torch(schedule: Schedule, chunks: int, groups: int) -> None:
    compared = 0
    for micro_batches in range(1, 17):
        try:
            found = orders(schedule, places(schedule, groups, chunks), micro_batches)
        except PlanError:
            continue
        assert [str(order) for order in found] == torch_table(schedule, groups, chunks, micro_batches)
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_single_stage_orders_are_those_of_torch(schedule: Schedule) -> None:
    """The last stage of torch 2.13's table of 1f1b numbers its forwards one too high (F0 B0 F2 ...), which its runtime
    does not: that one is compared without numbers.
    """
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    name = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}[schedule]
    for groups, micro_batches in [(2, 5), (3, 2), (4, 4), (4, 9)]:
        one = object.__new__(getattr(schedules, name))
        vars(one).update(_num_stages=groups, _n_microbatches=micro_batches, _stage=None)
        table = one._get_pipeline_order()
        expected = [" ".join(flat for action in table[rank] for flat in _flat(action)) for rank in range(groups)]
        found = [str(order) for order in orders(schedule, tuple(range(groups)), micro_batches)]
        assert found[:-1] == expected[:-1]
        assert [action[:2] for action in found[-1].split()] == [action[:2] for action in expected[-1].split()]


@QUICK
@given(st.sampled_from(sorted(PLACEMENTS)), st.integers(1, 6), st.integers(1, 4), st.integers(1, 24))
def test_every_micro_batch_goes_once_forward_and_once_backward_through_every_stage(
    schedule: Schedule, groups: int, chunks: int, micro_batches: int
) -> None:
    try:
        found = orders(schedule, places(schedule, groups, chunks), micro_batches)
    except PlanError:
        return
    check_orders(found)
    stages = len(places(schedule, groups, chunks))
    forwards = [(action.stage, action.micro_batch) for order in found for action in order if action.kind == "forward"]
    assert sorted(forwards) == [(stage, number) for stage in range(stages) for number in range(micro_batches)]


@pytest.mark.parametrize(
    ("schedule", "where", "count", "said"),
    [
        ("1f1b", (0, 1, 0, 1), 4, "1f1b needs one stage on each group; the stages lie on groups 0 1 0 1"),
        ("interleaved", (0, 1, 1, 0), 4, "interleaved needs two or more stages on each group, in turns"),
        ("zbv", (0, 1, 0, 1), 4, "zbv needs two stages on each group, there and back"),
        ("interleaved", (0, 1, 0, 1), 5, "5 make no equal rounds over 2 groups"),
        ("dualpipev", (0, 1, 1, 0), 3, "dualpipev needs as many as stages, 4 (got 3)"),
    ],
)
def test_stages_that_do_not_lie_as_the_schedule_wants_are_refused(
    schedule: Schedule, where: tuple[int, ...], count: int, said: str
) -> None:
    with pytest.raises(PlanError) as refused:
        orders(schedule, where, count)
    assert said in str(refused.value)


@pytest.mark.parametrize("schedule", sorted(PLACEMENTS))
def test_a_table_that_torch_would_write_is_read_back(schedule: Schedule) -> None:
    found = orders(schedule, places(schedule, 3), 6)
    text = "\n".join(",".join(["", *str(order).split(), ""]) for order in found)
    assert [str(order) for order in read_table(text)] == [str(order) for order in found]


def test_communication_and_pairs_of_a_table_are_understood() -> None:
    [order] = read_table("0UNSHARD,0RECV_F0,0F0,0SEND_F0,(0F1;0B0)OVERLAP_F_B,,0I1,0W1,0REDUCE_GRAD,0RESHARD\n")
    assert str(order) == "0F0 0F1 0B0 0I1 0W1"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("0F0,0X0", "line 1: '0X0' is no action"),
        ("0F", "line 1: '0F' is no action"),
        ("0B0,0F0", "group 0: 0B0 after nothing of that micro-batch"),
        ("0F0,0F0", "group 0: 0F0 after F of that micro-batch"),
        ("0F0\n1F0,1B0", "group 0: micro-batch 0 of stage 0 is unfinished"),
        ("0F0,0I0", "micro-batch 0 of stage 0 is unfinished"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(table: str, said: str) -> None:
    with pytest.raises(PlanError) as refused:
        read_table(table)
    assert said in str(refused.value)
