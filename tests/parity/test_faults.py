"""The proof can fail: each planted fault is seen, by the quantity that it spoils."""

from dataclasses import replace

import pytest

from meshwright.train.launch import WorkerPool
from tests.parity import faults
from tests.parity.cases import ROLES, SPLITS
from tests.parity.harness import Case, Fault
from tests.parity.verdict import EXACT, Verdict, prove

_DP_TP = ROLES["dp and tp"]
_POSITIONS, _ONE_KV_HEAD = SPLITS["attention dropped, samples padded"], SPLITS["one KV head for all"]
_ODD = SPLITS["tied zero1 and tp+sp, an odd vocabulary"]
_GPT2 = replace(_DP_TP, family="gpt2", dropout=0.2)

FAULTS: dict[str, tuple[Fault, Case, str]] = {
    "a wrong group": (faults.wrong_group, _DP_TP, "gradient"),
    "a doubled gradient": (faults.doubled_gradient, _DP_TP, "gradient"),
    "a missing all-reduce of gradients": (faults.missing_gradient_reduction, _DP_TP, "gradient"),
    "a missing all-reduce in forward": (faults.missing_forward_reduction, _DP_TP, "loss"),
    "a missing all-reduce in backward": (faults.missing_backward_reduction, _DP_TP, "gradient"),
    "the same dropout mask on every rank": (faults.same_dropout_everywhere, _GPT2, "loss"),
    "a mean where a sum belongs": (faults.mean_over_the_shard_group, ROLES["zero3"], "gradient"),
    "the norm of one rank": (faults.norm_of_one_rank, ROLES["zero3"], "norm"),
    "a missing sum of norms' gradients": (faults.missing_sum_of_partial_gradients, _POSITIONS, "gradient"),
    "dropout of the first positions": (faults.dropout_of_the_first_positions, _POSITIONS, "loss"),
    "attention dropout of the first heads": (faults.attention_dropout_of_the_first_heads, _POSITIONS, "loss"),
    "a ring in another order": (faults.ring_in_another_order, _POSITIONS, "loss"),
    "a ring without gradients": (faults.ring_without_the_gradients_of_others, _POSITIONS, "gradient"),
    "rotary tables of the first positions": (faults.rotary_of_the_first_positions, _ONE_KV_HEAD, "loss"),
    "a missing sum of copied heads": (faults.missing_sum_of_copied_heads, _ONE_KV_HEAD, "gradient"),
    "copies that are summed": (faults.copies_summed, SPLITS["copies"], "gradient"),
    "filler that counts": (faults.filler_that_counts, _ODD, "loss"),
}


def _difference(verdict: Verdict, quantity: str) -> float:
    found = getattr(verdict, quantity)
    return float(found[0] if isinstance(found, tuple) else found)


_held: dict[int, bool] = {}


def _holds(pool: WorkerPool, case: Case) -> bool:
    """Whether a case holds; many faults are planted in one."""
    if id(case) not in _held:
        _held[id(case)] = all(verdict.holds for verdict in prove(pool, case))
    return _held[id(case)]


@pytest.mark.parametrize(("fault", "case", "quantity"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_caught(pool: WorkerPool, fault: Fault, case: Case, quantity: str) -> None:
    assert _holds(pool, case), "the case must hold without the fault"
    worst = max(_difference(verdict, quantity) for verdict in prove(pool, case, fault))
    assert worst > 1e5 * EXACT
