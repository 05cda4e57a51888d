"""Every role of the runtime against one process."""

from collections.abc import Callable

import pytest

from meshwright.plan.rules_families import FAMILIES
from meshwright.plan.rules_runtime import PROVEN_SPLITS, PROVEN_STATES
from meshwright.train.launch import WorkerPool
from tests.parity.cases import every
from tests.parity.harness import Case, in_bf16, in_float32
from tests.parity.verdict import prove

CASES = every()


def test_what_the_rules_call_proven_is_what_is_proven_here() -> None:
    roles = {role for case in CASES.values() for role in case.roles}
    assert {role.split for role in roles} == set(PROVEN_SPLITS)
    assert {role.state for role in roles} == {None, *PROVEN_STATES}
    assert {case.family for case in CASES.values()} == {
        name for name, proof in FAMILIES.items() if set(proof.splits) == set(PROVEN_SPLITS) and not proof.experts
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_many_processes_equal_one_in_float64(pool: WorkerPool, case: Case) -> None:
    verdicts = prove(pool, case)
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))


@pytest.mark.parametrize("narrow", [in_float32, in_bf16])
@pytest.mark.parametrize(
    "name", ["llama: tp 4, then tp 2 with zero3", "gpt2 tied with dropout: zero3 and tp", "states side by side"]
)
def test_many_processes_equal_one_as_well_as_it_equals_itself(
    pool: WorkerPool, name: str, narrow: Callable[[Case], Case]
) -> None:
    verdicts = prove(pool, narrow(CASES[name]))
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))
