"""Rules about schedules and execution: their words, and that their fixes mend."""

from typing import Any

import pytest

from tests.plan.models import data_of, llama, mixture
from tests.plan.rule_cases import DELETE, PIPELINE, ROLES, Case, edited, hold


def stages(*on: str) -> list[dict[str, Any]]:
    """The layers of the tiny model on stages of these groups, one after the other."""
    names = ["embed", "decoder.0", "decoder.1", "decoder.2", "decoder.3", "head"]
    last = len(on) - 1
    shares = [names[place : place + 1] if place < last else names[place:] for place in range(len(on))]
    rows = [[{"span": name, "roles": ROLES} for name in share] for share in shares]
    return [{"on": group, "layers": layers} for group, layers in zip(on, rows, strict=True)]


EXPERTS = {"span": "decoder.2-3", "part": "experts", "roles": {"dp": "ep", "tp": "tp"}}
MOE = edited(PIPELINE, {"model": data_of(mixture(llama())), "plan/stages/1/layers/2": EXPERTS})
"""Eight experts, two of them chosen, over two ranks."""
TURNS = edited(PIPELINE, {"plan/stages": stages("a", "b", "a", "b"), "plan/schedule": "interleaved"})

CASES = [
    Case(
        "stages-lie-as-the-schedule-needs",
        {"plan/schedule": "1f1b"},
        "schedule",
        "1f1b needs one stage on each group, and the stages are on a, b, a, b",
        "write 'schedule: interleaved'",
        {"plan/schedule": "interleaved"},
        TURNS,
    ),
    Case(
        "stages-lie-as-the-schedule-needs",
        {"plan/stages": stages("a", "b", "b", "a")},
        "schedule",
        "interleaved needs two or more stages on each group, in turns, and the stages are on a, b, b, a",
        "write 'schedule: zbv'",
        {"plan/schedule": "zbv"},
        TURNS,
    ),
    Case(
        "stages-lie-as-the-schedule-needs",
        {"plan/schedule": "dualpipev"},
        "schedule",
        "dualpipev needs two stages on each group, there and back, and the stages are on a, b",
        "write 'schedule: 1f1b'",
        {"plan/schedule": "gpipe"},
    ),
    Case(
        "stages-lie-as-the-schedule-needs",
        {"plan/stages": stages("a", "b", "a")},
        "schedule",
        "interleaved needs two or more stages on each group, in turns, and the stages are on a, b, a",
        "put the stages on a, b, a, b",
        {"plan/stages": stages("a", "b", "a", "b")},
        TURNS,
    ),
    Case(
        "interleaved-rounds-are-equal",
        {"recipe/global_batch": 48, "plan/micro_batches": 5},
        "micro_batches",
        "5 micro-batches make no equal rounds over 2 groups, as 'interleaved' needs",
        "use 4",
        {"plan/micro_batches": 4},
        TURNS,
    ),
    Case(
        "dualpipev-fills-its-stages",
        {"plan/micro_batches": 2},
        "micro_batches",
        "dualpipev fills all stages, and micro-batches (2) are fewer than stages (4)",
        "use 4",
        {"plan/micro_batches": 4},
        edited(PIPELINE, {"plan/stages": stages("a", "b", "b", "a"), "plan/schedule": "dualpipev"}),
    ),
    Case(
        "sync-has-an-effect",
        {"plan/execution": {"sync": "last"}},
        "execution.sync",
        "sync 'last' has no effect: it is about zero2 and zero3, and no row has these",
        "write 'sync: each'",
        {"plan/execution/sync": "each"},
    ),
    Case(
        "prefetch-has-an-effect",
        {"plan/execution": {"prefetch": 2}},
        "execution.prefetch",
        "prefetch 2 has no effect: it is about zero3, and no row has it",
        "remove it",
        {"plan/execution/prefetch": DELETE},
    ),
    Case(
        "overlap-has-an-effect",
        {
            "plan/execution": {"overlap": ["gathers", "tensor"]},
            "plan/groups/a": {"devices": "0-1", "mesh": {"dp": 2, "tp": 1}},
            "plan/groups/b": {"devices": "4-5", "mesh": {"dp": 2, "tp": 1}},
        },
        "execution.overlap",
        "overlap of 'tensor' has no effect: no row has tp",
        "remove it",
        {"plan/execution/overlap": ["gathers"]},
    ),
    Case(
        "overlap-has-an-effect",
        {
            "plan/execution": {"overlap": ["gathers", "weights"]},
            "plan/groups/a": {"devices": "0-1", "mesh": {"dp": 2, "tp": 1}},
            "plan/groups/b": {"devices": "4-5", "mesh": {"dp": 2, "tp": 1}},
        },
        "execution.overlap",
        "overlap of 'weights' has no effect: no row has tp",
        "remove it",
        {"plan/execution/overlap": ["gathers"]},
    ),
    Case(
        "overlap-has-an-effect",
        {"plan/execution": {"overlap": ["gathers", "experts"]}},
        "execution.overlap",
        "overlap of 'experts' has no effect: no row has ep",
        "remove it",
        {"plan/execution/overlap": ["gathers"]},
    ),
    Case(
        "overlap-has-an-effect",
        {"plan/execution": {"overlap": ["gathers", "experts"]}},
        "execution.overlap",
        "overlap of 'experts' has no effect: 1f1b runs no forward together with a backward, as dualpipev and "
        "interleaved do",
        "remove it",
        {"plan/execution/overlap": ["gathers"]},
        MOE,
    ),
    Case(
        "experts-are-dispatched",
        {"plan/execution": {"dispatch": "nodes"}},
        "execution.dispatch",
        "dispatch nodes has no effect: no row has ep",
        "remove it",
        {"plan/execution/dispatch": DELETE},
    ),
    Case(
        "experts-are-dispatched",
        {"plan/execution": {"expert_imbalance": 1.2}},
        "execution.expert_imbalance",
        "expert_imbalance 1.2 has no effect: no row has ep",
        "remove it",
        {"plan/execution/expert_imbalance": DELETE},
    ),
    Case(
        "imbalance-is-possible",
        {"plan/execution": {"expert_imbalance": 2.5}},
        "execution.expert_imbalance",
        "expert_imbalance 2.5 cannot be: of 2 ranks of experts the busiest has 2 times the mean where all positions go "
        "to it",
        "use 2 or less",
        {"plan/execution/expert_imbalance": 2.0},
        MOE,
    ),
    Case(
        "bucket-has-an-effect",
        {
            "plan/execution": {"bucket_mib": 50.0},
            "plan/groups/a": {"devices": "0-1", "mesh": {"dp": 1, "tp": 2}},
            "plan/groups/b": {"devices": "4-5", "mesh": {"dp": 1, "tp": 2}},
        },
        "execution.bucket_mib",
        "bucket_mib 50 has no effect: no gradients are reduced between ranks",
        "remove it",
        {"plan/execution/bucket_mib": DELETE},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case)
