"""The bytes that a step moves are the bytes that `cost.volumes` says, collective by collective; of sums of gradients,
which share buckets, all together.
"""

from collections import Counter
from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.cost.volumes import Collective, step_collectives
from meshwright.plan.resolve import read_inputs
from meshwright.train.launch import WorkerPool
from tests.parity.cases import every
from tests.parity.harness import CLIP, Case, batches, build, in_bf16, plan_of, recipe_of
from tests.runtime.counting import CountCollectives, Counts, assert_moved

CASES = {name: case for name, case in every().items() if "buckets" not in name and not case.padded}
CASES |= {f"bf16: {name}": in_bf16(CASES[name]) for name in ("states side by side", "llama: dp and tp")}


def _counted(case: Case) -> Counts:
    module = build(case)
    parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    first, second, _ = batches(case)
    parallel.forward_backward(first)  # FSDP2 makes its own state in the first step
    with CountCollectives() as counting:
        parallel.forward_backward(second)
        parallel.clip_grad_norm_(CLIP)
    return counting.counts


def _predicted(case: Case) -> tuple[Counts, list[Collective]]:
    """What moves as it is predicted, and the sums of gradients, which share buckets."""
    module = build(case)
    inputs = read_inputs(plan_of(case), model=module.config, recipe=recipe_of(case))
    counts: Counts = Counter()
    moved = step_collectives(inputs)
    sums = [each for each in moved if (each.purpose, each.kind) == ("gradient", "all_reduce")]
    for collective in moved:
        if collective not in sums:
            counts[collective.kind, round(collective.bytes)] += collective.count
    return counts, sums


def _taken(counts: Counts, kind: str) -> int:
    """Take a kind out of the counts: its bytes in all."""
    keys = [key for key in counts if key[0] == kind]
    return sum(key[1] * counts.pop(key) for key in keys)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_moves_is_what_was_predicted(pool: WorkerPool, case: Case) -> None:
    (wanted, sums), busiest = _predicted(case), 0
    exchanged = _taken(wanted, "exchange")
    summed = sum(round(each.bytes) * each.count for each in sums)
    for rank, found in enumerate(pool.run(_counted, case)):
        busiest = max(busiest, _taken(found, "exchange"))
        buckets = assert_moved(found, wanted, summed, f"rank {rank}")
        assert len({each.axes for each in sums}) <= buckets <= sum(each.count for each in sums)
    assert busiest == exchanged


@pytest.mark.parametrize(("bucket_mib", "buckets"), [(25.0, 1), (1e-6, 39)])
def test_layers_share_a_bucket_as_far_as_it_holds_them(pool: WorkerPool, bucket_mib: float, buckets: int) -> None:
    case = replace(CASES["llama: dp"], execution={"bucket_mib": bucket_mib})
    wanted, sums = _predicted(case)
    summed = sum(round(each.bytes) * each.count for each in sums)
    for rank, found in enumerate(pool.run(_counted, case)):
        assert assert_moved(found, wanted, summed, f"rank {rank}") == buckets
