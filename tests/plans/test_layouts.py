"""The layouts that the golden plans are held against give the groups that their sources print as examples."""

import pytest

from meshwright.plan.groups import meeting_ranks
from meshwright.plan.spec import Group, Row
from tests.plans.layouts import Grid, deepspeed, llama3, megatron, megatron_experts, torchtitan, usp

MEGATRON = megatron(tp=2, cp=1, dp=2, pp=4)
LLAMA = llama3(tp=2, cp=2, pp=2, dp=2)

# What is printed where → layout, axis, and groups that it has (all of them where the source prints all).
EXAMPLES: dict[str, tuple[Grid, str, list[tuple[int, ...]], int]] = {
    "Megatron initialize_model_parallel, 8 data-parallel groups of 16 GPUs": (
        MEGATRON,
        "dp",
        [(0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)],
        8,
    ),
    "Megatron initialize_model_parallel, 8 tensor groups": (MEGATRON, "tp", [(0, 1), (2, 3), (14, 15)], 8),
    "Megatron initialize_model_parallel, 4 pipeline groups": (
        MEGATRON,
        "pp",
        [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)],
        4,
    ),
    "Megatron context_parallel_size, 8 GPUs with tp 4 and cp 2": (
        megatron(tp=4, cp=2, dp=1, pp=1),
        "cp",
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        4,
    ),
    "Megatron MoE README, cp 8 and ep 8 fold onto the same 8 GPUs": (
        megatron_experts(etp=1, ep=8, edp=1, pp=1),
        "ep",
        [tuple(range(8))],
        1,
    ),
    "Llama 3 paper, GPU0 and GPU1 are a TP group": (LLAMA, "tp", [(0, 1)], 8),
    "Llama 3 paper, GPU0 and GPU2 are a CP group": (LLAMA, "cp", [(0, 2)], 8),
    "Llama 3 paper, GPU0 and GPU4 are a PP group": (LLAMA, "pp", [(0, 4)], 8),
    "Llama 3 paper, GPU0 and GPU8 are a DP group": (LLAMA, "dp", [(0, 8)], 8),
    "DeepSpeed topology, the last axis is fastest": (deepspeed(pipe=2, data=2, model=2), "model", [(0, 1), (6, 7)], 4),
    "DeepSpeed topology, the first axis is slowest": (deepspeed(pipe=2, data=2, model=2), "pipe", [(0, 4), (3, 7)], 4),
    "torchtitan build_mesh, pp is slowest": (
        torchtitan(pp=2, dp_replicate=1, dp_shard=2, cp=1, tp=2),
        "pp",
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        4,
    ),
    "yunchang set_seq_parallel_pg, ring groups of 8 GPUs with ulysses 4": (
        usp(ring=2, ulysses=4),
        "ring",
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        4,
    ),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_layout_gives_the_groups_that_its_source_prints(example: str) -> None:
    grid, axis, printed, count = EXAMPLES[example]
    assert set(printed) <= grid.lists(axis)
    assert len(grid.lists(axis)) == count


def test_unlike_groups_meet_where_megatron_pairs_their_ranks() -> None:
    """Megatron 0.9, generator_wrapper: encoder tp 1, decoder tp 2, dp 2 give [g0, g2], [g0, g3], [g1, g4], [g1, g5]."""
    encoder = Group.model_validate({"devices": "0-1", "mesh": {"dp": 2}})
    decoder = Group.model_validate({"devices": "2-5", "mesh": {"dp": 2, "tp": 2}})
    left = Row.model_validate({"span": "encoder.0", "roles": {"dp": "dp"}})
    right = Row.model_validate({"span": "decoder.0", "roles": {"dp": "dp", "tp": "tp"}})
    assert meeting_ranks([(encoder, left), (decoder, right)]) == ((0, 2, 3), (1, 4, 5))
