"""Rules about layers and parts: their words, and that their fixes mend."""

import pytest

from tests.plan.models import data_of, listener, llama, mixture
from tests.plan.rule_cases import DELETE, PIPELINE, ROLES, Case, edited, hold

MOE = edited(PIPELINE, {"model": data_of(mixture(llama()))})
EXPERTS = {"span": "decoder.2-3", "part": "experts", "roles": {"dp": "ep", "tp": "tp"}}
LISTENER = edited(
    PIPELINE,
    {
        "model": data_of(listener()),
        "plan/stages/0/layers": [{"span": span, "roles": ROLES} for span in ("frames", "encoder.0-1")],
        "plan/stages/1/layers": [{"span": span, "roles": ROLES} for span in ("embed", "decoder.0-1")],
    },
)

CASES = [
    Case(
        "layer-is-known",
        {"plan/stages/1/layers/0/span": "decoder.2-5"},
        "stages.1.layers.0 (decoder.2-5)",
        "model 'tiny' does not have all of the layers 'decoder.2-5'",
        "write 'decoder.2-3'",
        {"plan/stages/1/layers/0/span": "decoder.2-3"},
    ),
    Case(
        "layer-is-known",
        {"plan/stages/0/layers/1/span": "decode.0-1"},
        "stages.0.layers.1 (decode.0-1)",
        "model 'tiny' does not have all of the layers 'decode.0-1'",
        "write 'decoder.0-1'",
        {"plan/stages/0/layers/1/span": "decoder.0-1"},
    ),
    Case(
        "layer-is-known",
        {"plan/stages/1/layers/1/span": "head.0"},
        "stages.1.layers.1 (head.0)",
        "model 'tiny' does not have all of the layers 'head.0'",
        "write 'head'",
        {"plan/stages/1/layers/1/span": "head"},
    ),
    Case(
        "layer-is-known",
        {"plan/stages/0/layers/1/span": "decoder"},
        "stages.0.layers.1 (decoder)",
        "model 'tiny' does not have all of the layers 'decoder'",
        "write 'decoder.0-3'",
        {"plan/stages/0/layers/1/span": "decoder.0-3"},
    ),
    Case(
        "layer-stands-once",
        {"plan/stages/0/layers/1/span": "decoder.0-2"},
        "stages.1.layers.0 (decoder.2-3)",
        "decoder.2 stands in stages.0.layers.1 (decoder.0-2) too",
        "take it out of one of the two rows",
        {"plan/stages/1/layers/0/span": "decoder.3"},
    ),
    Case(
        "every-layer-stands",
        {"plan/stages/1/layers/0/span": "decoder.3"},
        "stages",
        "no row holds decoder.2 of model 'tiny'",
        "add a row for decoder.2 to stage 0",
        {"plan/stages/0/layers/2": {"span": "decoder.2", "roles": ROLES}},
    ),
    Case(
        "stage-has-layers",
        {"plan/stages/2": {"on": "b", "layers": []}},
        "stages.2",
        "stage 2 has no layers",
        "give it a row, or remove it",
        {"plan/stages/2": DELETE},
    ),
    Case(
        "reads-come-first",
        {"plan/stages/0/layers/1/span": "decoder.2-3", "plan/stages/1/layers/0/span": "decoder.0-1"},
        "stages.0.layers.1 (decoder.2-3)",
        "'decoder.2' reads 'decoder.1', which stands after it in stages.1.layers.0 (decoder.0-1)",
        "put 'decoder.1' before 'decoder.2'",
        {"plan/stages/0/layers/1/span": "decoder.0-1", "plan/stages/1/layers/0/span": "decoder.2-3"},
    ),
    Case(
        "rows-follow-the-model",
        {
            "plan/stages/0/layers": [{"span": span, "roles": ROLES} for span in ("embed", "frames", "encoder.0-1")],
            "plan/stages/1/layers": [{"span": "decoder.0-1", "roles": ROLES}],
        },
        "stages.0.layers.1 (frames)",
        "'frames' comes before 'embed' in the model",
        "write the rows of the stage in the model's order: frames, encoder.0-1, embed",
        {"plan/stages/0/layers": [{"span": span, "roles": ROLES} for span in ("frames", "encoder.0-1", "embed")]},
        LISTENER,
    ),
    Case(
        "part-is-known",
        {"plan/stages/1/layers/2": EXPERTS | {"part": "expert"}},
        "stages.1.layers.2 (decoder.2-3 expert)",
        "decoder.1-3 has no part 'expert'",
        "write 'part: experts'",
        {"plan/stages/1/layers/2/part": "experts"},
        MOE,
    ),
    Case(
        "part-has-its-layer",
        {"plan/stages/1/layers/2": EXPERTS | {"span": "decoder.1-3"}},
        "stages.1.layers.2 (decoder.1-3 experts)",
        "part 'experts' of decoder.1 has roles of its own, but stage 1 has no row for the layers as a whole",
        "add a row for 'decoder.1' without 'part' to stage 1",
        {"plan/stages/1/layers/3": {"span": "decoder.1", "roles": ROLES}},
        MOE,
    ),
    Case(
        "part-stands-once",
        {"plan/stages/1/layers/2": EXPERTS, "plan/stages/1/layers/3": EXPERTS | {"span": "decoder.3"}},
        "stages.1.layers.3 (decoder.3 experts)",
        "part 'experts' of decoder.3 stands in stages.1.layers.2 (decoder.2-3 experts) too",
        "take it out of one of the two rows",
        {"plan/stages/1/layers/2/span": "decoder.2"},
        MOE,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case)
