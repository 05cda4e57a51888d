"""Every role of the runtime against one process: the same result, and the bytes that were predicted."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshwright.plan.rules_families import FAMILIES
from meshwright.plan.rules_runtime import PROVEN_SPLITS, PROVEN_STATES
from meshwright.train.launch import WorkerPool
from tests.parity.cases import every
from tests.parity.harness import Case, in_bf16, in_float32, many_processes
from tests.parity.moved import exchanged_as_predicted, inputs_of, moved_as_predicted, predicted
from tests.parity.verdict import judge_all
from tests.runtime.counting import assert_moved

CASES = every()


def test_what_the_rules_call_proven_is_what_is_proven_here() -> None:
    roles = {role for case in CASES.values() for role in case.roles}
    assert {role.split for role in roles} == set(PROVEN_SPLITS)
    assert {role.state for role in roles} == {None, *PROVEN_STATES}
    assert {case.family for case in CASES.values()} == {
        name for name, proof in FAMILIES.items() if set(proof.splits) == set(PROVEN_SPLITS) and not proof.experts
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_many_processes_equal_one_in_float64_and_move_what_was_predicted(pool: WorkerPool, case: Case) -> None:
    proven(pool, case)


@pytest.mark.parametrize("narrow", [in_float32, in_bf16])
@pytest.mark.parametrize(
    "name", ["llama: tp 4, then tp 2 with zero3", "gpt2 tied with dropout: zero3 and tp", "states side by side"]
)
def test_many_processes_equal_one_as_well_as_it_equals_itself(
    pool: WorkerPool, name: str, narrow: Callable[[Case], Case]
) -> None:
    proven(pool, narrow(CASES[name]))


def proven(pool: WorkerPool, case: Case) -> None:
    """Fails unless all ranks have what one process has. Masks that come with a batch are in no prediction."""
    inputs = inputs_of(case)
    found = pool.run(many_processes, case, model=inputs.model, timeout=90.0)
    verdicts = judge_all(case, found)
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))
    if not case.padded:
        moved_as_predicted(inputs, found)
        exchanged_as_predicted(inputs, found)


@pytest.mark.parametrize(("bucket_mib", "buckets"), [(25.0, 1), (1e-6, 39)])
def test_layers_share_a_bucket_as_far_as_it_holds_them(pool: WorkerPool, bucket_mib: float, buckets: int) -> None:
    case = replace(CASES["llama: dp"], execution={"bucket_mib": bucket_mib})
    inputs = inputs_of(case)
    collectives, sums, _ = predicted(inputs)
    (wanted,), (summed,) = collectives.values(), sums.values()
    for rank, found in enumerate(pool.run(many_processes, case, model=inputs.model, timeout=90.0)):
        assert assert_moved(found.moved[0], wanted, summed, f"rank {rank}") == buckets
