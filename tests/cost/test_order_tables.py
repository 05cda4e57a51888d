"""Orders read from the tables that torch.distributed.pipelining writes, and fitted to a plan."""

import pytest

from meshwright.cost.order_tables import fit_orders, read_table
from meshwright.errors import PlanError
from meshwright.plan.orders import orders
from meshwright.plan.rules_schedule import PLACEMENTS
from meshwright.plan.spec import Plan
from meshwright.plan.words import Schedule
from tests.cost.build import inputs, llama
from tests.plan.test_orders import places


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


@pytest.mark.parametrize("digits", ["9" * 8, "9" * 30])
def test_a_number_that_no_plan_reaches_is_no_action(digits: str) -> None:
    with pytest.raises(PlanError, match="is no action"):
        read_table(f"{digits}F0,0F{digits}")


def two_stages(micro_batches: int = 2) -> Plan:
    """A plan of one stage on each of two groups."""
    return inputs(llama(), "2xh100", {"all": 1}, {"all": "dp"}, pp=2, micro_batches=micro_batches).plan


def test_lines_are_known_by_their_stages() -> None:
    lines = ["1F0,1F1,1B0,1B1", "0F0,0F1,0B0,0B1"]
    found = fit_orders(read_table("\n".join(lines)), two_stages(), "order.csv")
    assert [str(order) for order in found] == [line.replace(",", " ") for line in reversed(lines)]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "order.csv: its lines have stages ; the groups of the plan have 0 | 1"),
        ("0F0,0F1,0B0,0B1", "its lines have stages 0; the groups of the plan have 0 | 1"),
        ("0F0,1F0,1B0,0B0\n1F1,1B1", "its lines have stages 0 1 | 1; the groups of the plan have 0 | 1"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0", "order.csv: stage 1 has micro-batches 0; the plan has 0-1"),
        ("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1B0,1B1", "stage 0 has micro-batches 0-2; the plan has 0-1"),
    ],
)
def test_a_table_of_another_plan_is_refused(table: str, said: str) -> None:
    with pytest.raises(PlanError) as refused:
        fit_orders(read_table(table), two_stages(), "order.csv")
    assert said in str(refused.value)
