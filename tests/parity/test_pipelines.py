"""Pipelines and recompute against one process: the same result, and the bytes that `cost.volumes` says."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshwright.plan.rules_runtime import PROVEN, PROVEN_SPLITS, PROVEN_STATES
from meshwright.train.launch import WorkerPool
from tests.parity import pipeline_faults as faults
from tests.parity.harness import Case, Fault, in_bf16, in_float32, many_processes
from tests.parity.moved import inputs_of, moved_as_predicted
from tests.parity.pipelines import PIPELINES, RECOMPUTE
from tests.parity.verdict import EXACT, judge_all, prove

CASES = {**PIPELINES, **RECOMPUTE}


FAULTS: dict[str, tuple[Fault, str, str]] = {
    "copies of a tied parameter that are not summed": (faults.copies_apart, "1f1b, tied", "gradient"),
    "copies that the norm counts twice": (faults.copies_counted_twice, "1f1b, tied", "norm"),
    "activations of another micro-batch": (faults.stale_activations, "zbv, tied", "loss"),
    "no gradient over the cut": (faults.no_gradient_over_the_cut, "1f1b, tied", "gradient"),
    "another sample's activations": (faults.the_first_sample_for_each, "1f1b, one, two and one rank", "loss"),
    "a loss that the other stages are not told": (faults.loss_of_the_last_stage_alone, "1f1b, tied", "loss"),
    "other positions' activations": (faults.positions_turned, "1f1b, one rank, then a ring of three", "loss"),
    "another sample's mask": (faults.mask_of_another_sample, "1f1b, every split and state", "gradient"),
    "a last micro-batch that nobody is told of": (faults.never_the_last, "1f1b, zero2 tied", "gradient"),
    "weights' half of a backward left out": (faults.weights_half_left_out, "zbv, tied", "gradient"),
    "another mask when recomputing": (faults.recomputed_with_another_mask, "full, zero3 and tp", "gradient"),
    "another mask beside what was kept": (faults.recomputed_with_another_mask, "save matrices, tp", "gradient"),
    "kept sums of another micro-batch": (
        faults.kept_of_another_micro_batch,
        "save half, attention and sums, tp+sp",
        "gradient",
    ),
    "a ring's attention of another micro-batch": (
        faults.kept_of_another_micro_batch,
        "save a ring's attention, dropped, 1f1b",
        "gradient",
    ),
}
"""Each with a case that holds without it, and the quantity that it spoils."""


def test_what_the_rules_call_proven_on_several_stages_is_what_is_proven_here() -> None:
    several = [case for case in PIPELINES.values() if len(case.stages) > 1]
    roles = {role for case in several for role in case.roles}
    assert {role.split for role in roles} == set(PROVEN_SPLITS)
    assert {role.state for role in roles} == {None, *PROVEN_STATES}
    assert {case.schedule for case in PIPELINES.values()} == set(PROVEN["plan.schedule"])
    assert {case.family for case in several} == {"llama", "gpt2"}  # of others, in test_families


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_many_processes_equal_one_and_move_what_was_predicted(pool: WorkerPool, case: Case) -> None:
    found = pool.run(many_processes, case, timeout=90.0)
    verdicts = judge_all(case, found)
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))
    if case.stages:
        moved_as_predicted(inputs_of(case), found)


def test_many_processes_equal_one_in_float32(pool: WorkerPool) -> None:
    verdicts = prove(pool, in_float32(replace(CASES["zbv, tied"], dropout=0.0)))
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))


@pytest.mark.parametrize("narrow", [in_float32, in_bf16])
def test_outputs_that_are_kept_are_as_good_as_computed_anew(pool: WorkerPool, narrow: Callable[[Case], Case]) -> None:
    verdicts = prove(pool, narrow(CASES["save half, attention and sums, tp+sp"]))
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))


@pytest.mark.parametrize(("fault", "name", "quantity"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_caught(pool: WorkerPool, fault: Fault, name: str, quantity: str) -> None:
    found = [getattr(verdict, quantity) for verdict in prove(pool, CASES[name], fault)]
    assert max(each[0] if isinstance(each, tuple) else each for each in found) > 1e5 * EXACT
