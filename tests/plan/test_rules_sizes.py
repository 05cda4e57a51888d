"""Rules about sizes: their words, and that their fixes mend."""

import pytest

from tests.plan.models import data_of, listener, llama, mixture
from tests.plan.rule_cases import PIPELINE, Case, edited, hold, said_by

WIDE = edited(
    PIPELINE,
    {
        "plan/groups": {"a": {"devices": "0-7", "mesh": {"dp": 2, "tp": 4}}},
        "plan/stages": [
            {
                "on": "a",
                "layers": [
                    {"span": span, "roles": {"dp": "dp", "tp": "tp"}} for span in ("embed", "decoder.0-3", "head")
                ],
            }
        ],
    },
)
"""One stage on eight devices, tp 4."""
EXPERTS = {"span": "decoder.1-3", "part": "experts", "roles": {"dp": "ep", "tp": "tp"}}
MOE = edited(WIDE, {"model": data_of(mixture(llama())), "plan/stages/0/layers/3": EXPERTS})
LISTENER = edited(
    WIDE,
    {
        "model": data_of(listener()),
        "plan/stages/0/layers": [
            {"span": span, "roles": {"dp": "dp", "tp": "copy"}}
            for span in ("frames", "encoder.0-1", "embed", "decoder.0-1")
        ],
    },
)

CASES = [
    Case(
        "micro-batches-divide-the-batch",
        {"plan/micro_batches": 5},
        "micro_batches",
        "a global batch of 16 does not divide into 5 micro-batches",
        "use 4",
        {"plan/micro_batches": 4},
    ),
    Case(
        "micro-batches-divide-the-batch",
        {"plan/micro_batches": 17},
        "micro_batches",
        "a global batch of 16 does not divide into 17 micro-batches",
        "use 8",
        {"plan/micro_batches": 8},
    ),
    Case(
        "samples-divide",
        {"plan/micro_batches": 16},
        "stages.0.layers.0 (embed) and 3 more",
        "the samples of a micro-batch (1) do not divide over 2 ranks (dp)",
        "use 8 micro-batches",
        {"plan/micro_batches": 8},
    ),
    Case(
        "samples-divide",
        {"recipe/global_batch": 25, "plan/recipe/global_batch": 25, "plan/micro_batches": 5},
        "stages.0.layers.0 (embed) and 3 more",
        "the samples of a micro-batch (5) do not divide over 2 ranks (dp)",
        "use a global batch of 20",
        {"recipe/global_batch": 20},
    ),
    Case(
        "heads-divide",
        {"model": data_of(llama(heads=6, kv_heads=6, hidden=24))},
        "stages.0.layers.1 (decoder.0-3)",
        "6 heads do not divide over tp 4",
        "split them over 3 ranks",
        {"plan/groups/a": {"devices": "0-5", "mesh": {"dp": 2, "tp": 3}}},
        WIDE,
    ),
    Case(
        "heads-divide",
        {"plan/stages/0/layers/1/roles": {"dp": "ulysses", "tp": "tp"}, "model": data_of(llama(heads=4))},
        "stages.0.layers.1 (decoder.0-3)",
        "4 heads do not divide over tp 4 x ulysses 2",
        "split them over 4 ranks",
        {"plan/stages/0/layers/1/roles": {"dp": "dp", "tp": "tp"}},
        WIDE,
    ),
    Case(
        "kv-heads-divide",
        {"model": data_of(llama(heads=12, kv_heads=3, hidden=48))},
        "stages.0.layers.1 (decoder.0-3)",
        "3 KV heads neither divide over tp 4 nor have whole copies there",
        "split the heads over 3 ranks",
        {"plan/groups/a": {"devices": "0-5", "mesh": {"dp": 2, "tp": 3}}},
        WIDE,
    ),
    Case(
        "widths-divide",
        {"model": data_of(llama(ffn=50))},
        "stages.0.layers.1 (decoder.0-3)",
        "the width 50 of 'model.layers.{i}.mlp.gate_proj' does not divide over tp 4",
        "use tp 2",
        {"plan/groups/a/mesh": {"dp": 4, "tp": 2}},
        WIDE,
    ),
    Case(
        "widths-divide",
        {"model/stacks/2/parts/1/operators/1/ffn": 6},
        "stages.0.layers.3 (decoder.1-3 experts)",
        "the width 6 of 'experts' does not divide over tp 4",
        "use tp 3",
        {"plan/groups/a": {"devices": "0-5", "mesh": {"dp": 2, "tp": 3}}},
        MOE,
    ),
    Case(
        "vocabulary-divides",
        {"model": data_of(llama(rows=65))},
        "stages.0.layers.0 (embed) and 1 more",
        "a vocabulary of 65 does not divide over tp 4, and is padded to 68",
        "give the model a vocabulary of 68",
        {"model": data_of(llama(rows=68))},
        WIDE,
    ),
    Case(
        "sequence-divides",
        {"plan/stages/0/layers/1/roles": {"dp": "cp", "tp": "tp+sp"}, "recipe/sequence": 34},
        "stages.0.layers.1 (decoder.0-3)",
        "the 34 positions of stream 'tokens' are no multiple of 8 (cp 2 x tp+sp 4, two pieces a rank of a causal ring)",
        "use a sequence of 32",
        {"recipe/sequence": 32},
        WIDE,
    ),
    Case(
        "sequence-divides",
        {"plan/stages/0/layers/0/roles/dp": "cp", "recipe/sequence": 6},
        "stages.0.layers.0 (embed)",
        "the 6 positions of stream 'tokens' are no multiple of 4 (cp 2, two pieces a rank of a causal ring)",
        "use a sequence of 4",
        {"recipe/sequence": 4},
        WIDE,
    ),
    Case(
        "sequence-divides",
        {
            "plan/groups/a": {"devices": "0-4", "mesh": {"dp": 1, "tp": 5}},
            "plan/stages/0/layers/3/roles/tp": "ulysses",
            "recipe/sequence": 40,
        },
        "stages.0.layers.3 (decoder.0-1)",
        "the 48 positions of stream 'audio' are no multiple of 5 (ulysses 5)",
        "split it over 4 ranks",
        {"plan/groups/a": {"devices": "0-3", "mesh": {"dp": 1, "tp": 4}}},
        LISTENER,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case)


LEGAL = {
    "each KV head has whole copies on tp 8": (
        {"plan/groups/a/mesh": {"dp": 1, "tp": 8}, "model": data_of(llama(kv_heads=2))},
        WIDE,
    ),
    "a stream that is only looked at is left whole by tp+sp": (
        {
            "plan/groups/a": {"devices": "0-4", "mesh": {"dp": 1, "tp": 5}},
            "plan/stages/0/layers/3/roles/tp": "tp+sp",
            "recipe/sequence": 40,
        },
        LISTENER,
    ),
    "an encoder's ring needs no second piece": (
        {
            "plan/groups/a": {"devices": "0-2", "mesh": {"dp": 1, "tp": 3}},
            "plan/stages/0/layers/1/roles/tp": "cp",
            "model/streams/audio/length": 3,
        },
        LISTENER,
    ),
}


@pytest.mark.parametrize(("edits", "base"), LEGAL.values(), ids=LEGAL)
def test_what_divides_is_not_refused(edits: dict[str, object], base: dict[str, object]) -> None:
    silent = ("kv-heads-divide", "widths-divide", "sequence-divides")
    assert [problem for problem in said_by(edited(base, edits)) if problem.rule in silent] == []
