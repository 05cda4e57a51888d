"""Families of models under mixed plans against one process: the same result, and the bytes that were predicted."""

from dataclasses import replace

import pytest

from meshwright.plan import rules_families
from meshwright.train.launch import WorkerPool
from tests.parity import family_faults as faults
from tests.parity.families import FAMILIES, MIXED, STAGED
from tests.parity.faults import doubled_gradient
from tests.parity.harness import Case, Fault, in_bf16, in_float32, many_processes
from tests.parity.moved import inputs_of, moved_as_predicted
from tests.parity.verdict import EXACT, judge_all, prove

CASES = {**FAMILIES, **STAGED}
FAULTS: dict[str, tuple[Fault, str, str]] = {
    "a fused matrix cut as if it were plain": (faults.fused_as_if_plain, "phi3 with dropout", "loss"),
    "heads cut as if all queries came first": (faults.interleaved_as_if_in_a_row, "gpt_neox with dropout", "loss"),
    "norms that learn from their own heads": (faults.norms_of_other_heads_left_out, "qwen3, tied", "gradient"),
    "an embedding that is not scaled": (faults.plain_lookup, "gemma3, windows, tied", "loss"),
    "called dropout of the first samples": (
        faults.called_dropout_of_the_first_samples,
        "opt tied with dropout",
        "loss",
    ),
    "dropped weights of the first heads": (
        faults.dropped_weights_of_the_first_heads,
        "bert tied, all dropped",
        "gradient",
    ),
    "dropped channels of the first rank": (faults.dropped_weights_of_the_first_heads, "t5, all dropped", "loss"),
    "a mean of means": (faults.a_mean_of_means, "sentences by class, 1f1b, padded", "loss"),
    "decoders that see what they say": (faults.decoders_that_see_what_they_say, "t5, all dropped", "loss"),
    "the last piece left out": (faults.the_last_piece_left_out, "llama, logits in pieces", "loss"),
    "statistics of own samples": (faults.statistics_of_own_samples, "her own network", "loss"),
    "statistics that learn from own samples": (
        faults.statistics_that_learn_from_own_samples,
        "her own network",
        "gradient",
    ),
}
"""Each with a case that holds without it, and the quantity that it spoils."""


def test_what_the_rules_call_proven_of_a_family_is_what_is_proven_here() -> None:
    for name, proof in rules_families.FAMILIES.items():
        cases = [case for case in CASES.values() if case.family == name]
        roles = {role for case in cases for role in case.roles}
        if name not in ("llama", "gpt2") and not proof.experts:  # of which test_roles, _pipelines, _experts prove more
            assert {role.split for role in roles} == set(proof.splits)
            assert {role.state for role in roles} == {None, "zero1", "zero2", "zero3"}
            assert any(len(case.stages) > 1 for case in cases) == proof.stages
            assert any(case.attention_dropout or name == "t5" for case in cases) == proof.attention_dropout


def test_what_the_rules_call_proven_in_bf16_is_what_is_proven_here() -> None:
    mixed = {name for name, proof in rules_families.FAMILIES.items() if proof.mixed}
    assert mixed == {"llama", "gpt2", *(case.family for case in MIXED.values())} & set(rules_families.FAMILIES)
    for name in mixed - {"llama", "gpt2"}:  # of which test_roles has more
        assert {len(case.stages) > 1 for case in MIXED.values() if case.family == name} == {False, True}
    assert rules_families.OWN.mixed == any(case.family == "OwnTransformer" for case in MIXED.values())
    assert not rules_families.NETWORK.mixed


@pytest.mark.parametrize(
    "case",
    [in_float32(FAMILIES["resnet"]), in_bf16(MIXED["falcon, one KV head"]), in_bf16(MIXED["whisper, all dropped"])],
    ids=["resnet in float32", "falcon in bf16", "whisper in bf16"],
)
def test_many_processes_equal_one_as_well_as_it_equals_itself(pool: WorkerPool, case: Case) -> None:
    verdicts = prove(pool, case, model=inputs_of(case).model)  # all others in `make parity`
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))


def test_a_doubled_gradient_is_caught_in_bf16(pool: WorkerPool) -> None:
    case = in_bf16(MIXED["falcon, one KV head"])
    assert not any(verdict.holds for verdict in prove(pool, case, doubled_gradient, inputs_of(case).model))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_many_processes_equal_one_and_move_what_was_predicted(pool: WorkerPool, case: Case) -> None:
    inputs = inputs_of(case)
    found = pool.run(many_processes, case, model=inputs.model, timeout=90.0)
    verdicts = judge_all(case, found)
    assert all(verdict.holds for verdict in verdicts), "\n".join(map(str, verdicts))
    if case.stages or not (case.padded or case.family == "whisper"):  # whose fixed positions count as learning
        moved_as_predicted(inputs, found)


@pytest.mark.parametrize(("fault", "name", "quantity"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_caught(pool: WorkerPool, fault: Fault, name: str, quantity: str) -> None:
    case = replace(CASES[name], steps=1)
    found = [getattr(verdict, quantity) for verdict in prove(pool, case, fault, inputs_of(case).model)]
    assert max(each[0] if isinstance(each, tuple) else each for each in found) > 1e5 * EXACT
