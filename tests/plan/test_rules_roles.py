"""Rules about roles, recompute and offload: their words, and that their fixes mend."""

import pytest

from meshwright.cluster.shorthand import parse_cluster
from tests.plan.models import data_of, listener, llama, mixture, resnet
from tests.plan.rule_cases import DELETE, PIPELINE, Case, edited, hold, said_by

EXPERTS = {"span": "decoder.2-3", "part": "experts", "roles": {"dp": "ep", "tp": "tp"}}
MOE = edited(PIPELINE, {"model": data_of(mixture(llama())), "plan/stages/1/layers/2": EXPERTS})
LISTENER = edited(
    PIPELINE,
    {
        "model": data_of(listener()),
        "plan/stages/0/layers": [
            {"span": span, "roles": {"dp": "dp", "tp": "dp"}} for span in ("frames", "encoder.0-1")
        ],
        "plan/stages/1/layers": [
            {"span": span, "roles": {"dp": "dp", "tp": "dp"}} for span in ("embed", "decoder.0-1")
        ],
    },
)
RESNET = edited(
    PIPELINE,
    {
        "model": data_of(resnet()),
        "plan/stages/0/layers": [{"span": "block.0-1", "roles": {"dp": "dp", "tp": "dp"}}],
        "plan/stages/1/layers": [{"span": "block.2-3", "roles": {"dp": "dp", "tp": "dp"}}],
    },
)

CASES = [
    Case(
        "axis-is-known",
        {"plan/stages/0/layers/0/roles": {"pd": "dp", "tp": "tp"}},
        "stages.0.layers.0 (embed)",
        "group 'a' has no axis 'pd'; its mesh is {dp: 2, tp: 2}",
        "write 'dp'",
        {"plan/stages/0/layers/0/roles": {"dp": "dp", "tp": "tp"}},
    ),
    Case(
        "axis-is-known",
        {"plan/stages/0/layers/0/roles/cp": "cp"},
        "stages.0.layers.0 (embed)",
        "group 'a' has no axis 'cp'; its mesh is {dp: 2, tp: 2}",
        "remove 'cp'",
        {"plan/stages/0/layers/0/roles/cp": DELETE},
    ),
    Case(
        "every-axis-has-a-role",
        {"plan/stages/0/layers/0/roles/tp": DELETE},
        "stages.0.layers.0 (embed)",
        "axis 'tp' of group 'a' has no role",
        "give it one, for example 'tp: tp'",
        {"plan/stages/0/layers/0/roles/tp": "tp"},
    ),
    Case(
        "every-axis-has-a-role",
        {"plan/groups/a/mesh": {"dp": 2, "tp": 2, "new": 1}},
        "stages.0.layers.0 (embed) and 1 more",
        "axis 'new' of group 'a' has no role",
        "give it one, for example 'new: dp'",
        {"plan/stages/0/layers/0/roles/new": "dp", "plan/stages/0/layers/1/roles/new": "dp"},
    ),
    Case(
        "state-needs-equal-parameters",
        {"plan/stages/0/layers/0/roles/tp": "tp/zero1"},
        "stages.0.layers.0 (embed)",
        "axis 'tp' has role 'tp/zero1', but tp leaves no equal parameters for zero1 to shard",
        "write 'tp: tp'",
        {"plan/stages/0/layers/0/roles/tp": "tp"},
    ),
    Case(
        "one-state-a-row",
        {"plan/stages/0/layers/0/roles": {"dp": "dp/zero1", "tp": "cp/zero3"}},
        "stages.0.layers.0 (embed)",
        "a row has one state, and this one has zero1 and zero3",
        "write {dp: dp/zero1, tp: cp/zero1}",
        {"plan/stages/0/layers/0/roles": {"dp": "dp/zero1", "tp": "cp/zero1"}},
    ),
    Case(
        "state-shards",
        {"plan/groups/a": {"devices": "0-1", "mesh": {"dp": 1, "tp": 2}}, "plan/stages/0/layers/1/roles/dp": "dp"},
        "stages.0.layers.0 (embed)",
        "zero1 has no effect: it shards over dp, which is one rank",
        "write {dp: dp}",
        {"plan/stages/0/layers/0/roles/dp": "dp"},
    ),
    Case(
        "ep-spreads-experts",
        {"plan/stages/1/layers/0/roles/dp": "ep"},
        "stages.1.layers.0 (decoder.2-3)",
        "axis dp has role 'ep', which spreads routed experts, and a layer as a whole is more or other than these",
        "write 'dp'",
        {"plan/stages/1/layers/0/roles/dp": "dp"},
    ),
    Case(
        "ep-spreads-experts",
        {"plan/stages/1/layers/2/part": "attention"},
        "stages.1.layers.2 (decoder.2-3 attention)",
        "axis dp has role 'ep', which spreads routed experts, and part 'attention' is more or other than these",
        "write 'dp' here, and 'ep' in a row with 'part: experts'",
        {
            "plan/stages/1/layers/2/roles/dp": "dp",
            "plan/stages/1/layers/3": EXPERTS,
        },
        MOE,
    ),
    Case(
        "experts-divide",
        {"model": data_of(mixture(llama(), experts=9))},
        "stages.1.layers.2 (decoder.2-3 experts)",
        "9 experts do not divide over 2 ranks (ep)",
        "spread them over 1",
        {"plan/stages/1/layers/2/roles/dp": "dp"},
        MOE,
    ),
    Case(
        "convolution-keeps-its-sequence",
        {"plan/stages/0/layers/0/roles/tp": "cp/zero1"},
        "stages.0.layers.0 (frames)",
        "axis tp cuts the sequence, and a convolution needs its neighbours' positions",
        "write {tp: copy/zero1}",
        {"plan/stages/0/layers/0/roles/tp": "copy/zero1"},
        LISTENER,
    ),
    Case(
        "tp-splits",
        {"plan/stages/0/layers/0/roles/tp": "tp"},
        "stages.0.layers.0 (block.0-1)",
        "tp on axis tp has no effect: block.0-3 has nothing that it splits, so every rank does the same",
        "write 'copy'",
        {"plan/stages/0/layers/0/roles/tp": "copy"},
        RESNET,
    ),
    Case(
        "save-names-something",
        {"plan/stages/0/layers/1/recompute": {"save": []}},
        "stages.0.layers.1 (decoder.0-1)",
        "an empty 'save' keeps nothing",
        "write 'recompute: full'",
        {"plan/stages/0/layers/1/recompute": "full"},
    ),
    Case(
        "selective-needs-attention",
        {"plan/stages/0/layers/0/recompute": "selective"},
        "stages.0.layers.0 (embed)",
        "recompute 'selective' has no effect: it is the core attention's, and embed has none",
        "write 'recompute: none'",
        {"plan/stages/0/layers/0/recompute": "none"},
    ),
    Case(
        "repeat-finds-something",
        {"plan/stages/0/layers/1/recompute": {"repeat": ["norm", "up-projection"]}},
        "stages.0.layers.1 (decoder.0-1)",
        "to repeat 'up-projection' has no effect: decoder.0-1 has none",
        "remove it",
        {"plan/stages/0/layers/1/recompute": {"repeat": ["norm"]}},
    ),
    Case(
        "offload-moves-something",
        {
            "recipe/optimizer": {"name": "sgd"},
            "recipe/precision": {"master": None},
            "plan/stages/0/layers/0/offload": {"optimizer": "cpu", "activations": "cpu"},
        },
        "stages.0.layers.0 (embed)",
        "offload of 'optimizer' has no effect: sgd keeps nothing",
        "remove it",
        {"plan/stages/0/layers/0/offload": {"activations": "cpu"}},
    ),
    Case(
        "offload-has-a-host",
        {
            "cluster": parse_cluster("8xa800").as_data() | {"meshwright_cluster": 1},
            "plan/stages/0/layers/0/offload": {"parameters": "cpu"},
        },
        "stages.0.layers.0 (embed)",
        "the cluster says nothing of the hosts of pool a800: neither the time of offload's copies nor the memory that "
        "they fill is counted",
        "give the pool a 'host'",
        {"cluster": PIPELINE["cluster"]},
    ),
    Case(
        "muon-steps-on-the-device",
        {"recipe/optimizer": {"name": "muon"}, "plan/stages/0/layers/1/offload": {"optimizer": "cpu"}},
        "stages.0.layers.1 (decoder.0-1)",
        "offload of 'optimizer' keeps the momentum of decoder.0-1 on the host, and muon multiplies it on the device",
        "remove it, or choose the optimizer adamw",
        {"plan/stages/0/layers/1/offload": DELETE},
    ),
]


@pytest.mark.parametrize(("stage", "layer"), [(0, 0), (1, 1)], ids=["embed", "head"])
def test_what_muon_leaves_to_adam_may_step_on_the_host(stage: int, layer: int) -> None:
    edits = {"recipe/optimizer": {"name": "muon"}, f"plan/stages/{stage}/layers/{layer}/offload": {"optimizer": "cpu"}}
    assert "muon-steps-on-the-device" not in {problem.rule for problem in said_by(edited(PIPELINE, edits))}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case)
