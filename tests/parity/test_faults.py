"""The proof can fail: each planted fault is seen, by the quantity that it spoils."""

from dataclasses import replace

import pytest

from meshwright.train.launch import WorkerPool
from tests.parity import faults
from tests.parity.cases import ROLES
from tests.parity.harness import EXACT, Case, Fault, Verdict, prove

_DP_TP = ROLES["dp and tp"]
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
}


def _difference(verdict: Verdict, quantity: str) -> float:
    found = getattr(verdict, quantity)
    return float(found[0] if isinstance(found, tuple) else found)


@pytest.mark.parametrize(("fault", "case", "quantity"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_caught(pool: WorkerPool, fault: Fault, case: Case, quantity: str) -> None:
    assert all(verdict.holds for verdict in prove(pool, case)), "the case must hold without the fault"
    worst = max(_difference(verdict, quantity) for verdict in prove(pool, case, fault))
    assert worst > 1e5 * EXACT
