"""The schedules' orders, against the tables that torch.distributed.pipelining makes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.order_tables import check_orders
from meshwright.errors import PlanError
from meshwright.plan.orders import orders
from meshwright.plan.rules_schedule import PLACEMENTS, makes_pairs
from meshwright.plan.words import Schedule
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


@pytest.mark.parametrize("groups", range(1, 6))
def test_pairs_of_dualpipev_are_those_of_torch(groups: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for count in range(2 * groups, 17):
        found = orders("dualpipev", places("dualpipev", groups), count, pairs=True)
        for rank, order in enumerate(found):
            one = object.__new__(schedules.ScheduleDualPipeV)
            vars(one).update(pp_group_size=groups, _n_microbatches=count, _num_stages=2 * groups)
            table = [action for action in one._calculate_single_rank_operations(rank) if action]
            expected = [" ".join(_flat(action)) for action in table if action.sub_actions]
            said = str(order).split()
            assert [f"{said[place]} {said[place + 1]}" for place in order.joined] == expected


@QUICK
@given(st.sampled_from(sorted(PLACEMENTS)), st.integers(1, 6), st.integers(1, 4), st.integers(1, 24))
def test_a_pair_is_a_forward_with_the_backward_of_another_micro_batch_right_after_it(
    schedule: Schedule, groups: int, chunks: int, micro_batches: int
) -> None:
    where = places(schedule, groups, chunks)
    try:
        found = orders(schedule, where, micro_batches, pairs=True)
    except PlanError:
        return
    check_orders(found)
    for order, usual in zip(found, orders(schedule, where, micro_batches), strict=True):
        actions = list(order)
        assert sorted(actions) == sorted(usual)
        assert not len(order.joined) or makes_pairs(schedule, len(where))
        for place in order.joined:
            forward, backward = actions[place], actions[place + 1]
            assert (forward.kind, backward.kind) == ("forward", "backward")
            assert (forward.stage, forward.micro_batch) != (backward.stage, backward.micro_batch)


def test_megatrons_pairs_have_one_more_forward_ahead() -> None:
    """--overlap-moe-expert-parallel-comm: on a single device the first forward is alone, and the last backward."""
    [order] = orders("1f1b", (0,), 3, pairs=True)
    assert (str(order), order.joined.tolist()) == ("0F0 0F1 0B0 0F2 0B1 0B2", [1, 3])
    for group, order in enumerate(orders("interleaved", (0, 1, 0, 1), 4, pairs=True)):
        ahead = 2 + 2 * (1 - group) + 1
        assert order.joined.tolist() == list(range(ahead, 16 - ahead, 2))


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
