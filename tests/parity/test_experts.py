"""Experts spread over ranks against one process: the same result, and the bytes that `cost.volumes` says."""

from dataclasses import replace

import pytest

from meshwright.plan.rules_families import FAMILIES
from meshwright.plan.spec import parse_role
from meshwright.train.launch import WorkerPool
from tests.parity import expert_faults as faults
from tests.parity.experts import EXPERTS
from tests.parity.harness import Case, Fault, in_float32, many_processes
from tests.parity.moved import inputs_of, moved_as_predicted, sent_to_experts_as_predicted
from tests.parity.verdict import EXACT, judge_all, prove

FAULTS: dict[str, tuple[Fault, str, str]] = {
    "positions that come back in another order": (faults.returned_in_another_order, "ep of four", "loss"),
    "experts that sum up with others": (faults.summed_over_other_experts, "ep and dp, attention dropped", "gradient"),
    "copies for another expert": (faults.copies_for_another_expert, "ep of four", "gradient"),
    "gradients that stay with their rank": (faults.gradients_that_stay, "ep of four", "gradient"),
}
"""Each with a case that holds without it, and the quantity that it spoils."""


def test_what_the_rules_call_proven_of_experts_is_what_is_proven_here() -> None:
    roles = {parse_role(role) for case in EXPERTS.values() for row in case.experts.values() for role in row.values()}
    dense = {role for case in EXPERTS.values() for role in case.roles}
    families = {name: proof for name, proof in FAMILIES.items() if proof.experts}
    assert families.keys() == {case.family for case in EXPERTS.values()}
    for proof in families.values():
        assert {role.split for role in roles} == set(proof.experts)
        assert {role.split for role in dense} == set(proof.splits)
    assert {role.state for role in roles} == {role.state for role in dense} == {None, "zero1", "zero2", "zero3"}


@pytest.mark.parametrize("case", EXPERTS.values(), ids=EXPERTS.keys())
def test_many_processes_equal_one_and_move_what_was_predicted(pool: WorkerPool, case: Case) -> None:
    inputs, found = inputs_of(case), pool.run(many_processes, case, timeout=90.0)
    verdicts = judge_all(case, found)
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))
    moved_as_predicted(inputs, found)
    sent_to_experts_as_predicted(inputs, found)


def test_torchs_grouped_products_run_the_experts_of_a_rank(pool: WorkerPool) -> None:
    verdicts = prove(pool, in_float32(EXPERTS["tp beside ep"]))
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))


@pytest.mark.parametrize(("fault", "name", "quantity"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_caught(pool: WorkerPool, fault: Fault, name: str, quantity: str) -> None:
    found = [getattr(verdict, quantity) for verdict in prove(pool, replace(EXPERTS[name], steps=1), fault)]
    assert max(each[0] if isinstance(each, tuple) else each for each in found) > 1e5 * EXACT
