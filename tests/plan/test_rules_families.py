"""Rules of the runtime by family: their words, and that their fixes mend; which own models it takes."""

from typing import Any

import pytest

from meshwright.model.hf_config import from_config
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules_families import is_own_decoder, is_own_network
from tests.plan.models import data_of, gpt2, llama, resnet
from tests.plan.rule_cases import Case, edited, hold
from tests.plan.test_rules_runtime import HALVES, RUNS

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
_INNER = {"op": "dropout", "width": 48, "probability": 0.1}


def _tiny(kind: str, **fields: Any) -> dict[str, Any]:
    return data_of(from_config({"model_type": kind, **_SIZES, **fields}, "tiny"))


def _own(**edits: Any) -> ModelSpec:
    return ModelSpec.from_data(edited(data_of(llama()), {"family": "Hers", "source": "traced from hers", **edits}))


_ENCODER = "encoder_embed encoder.0-5 encoder_norm"


def _in_halves(*spans: str) -> list[dict[str, Any]]:
    """A stage for each group."""
    return [
        {"on": group, "layers": [{"span": span, "roles": {"x": "dp"}} for span in held.split()]}
        for group, held in zip("ab", spans, strict=True)
    ]


_SIDES = edited(
    RUNS,
    {
        "model": data_of(from_config({"model_type": "t5", "num_layers": 6, "num_heads": 4}, "tiny")),
        "plan/recipe/sequence": {"source": 8, "target": 8},
        "recipe/sequence": {"source": 8, "target": 8},
        "recipe/loss": {"kind": "seq2seq"},
        "plan/stages/0/layers": [
            {"span": span, "roles": {"dp": "dp", "tp": "tp"}}
            for span in (*_ENCODER.split(), "decoder_embed", "decoder.0-5", "head")
        ],
    },
)
_NETWORK = edited(
    RUNS,
    {
        "model": edited(data_of(resnet()), {"source": "traced from hers"}),
        "recipe/loss": {"kind": "classification"},
        "recipe/micro_batches": 4,
        "plan/stages/0/layers": [{"span": "block.0-3", "roles": {"dp": "dp", "tp": "dp/zero3"}}],
    },
)


CASES = [
    Case(
        "runtime-unproven",
        {"plan/schedule": "gpipe"},
        "stages.0.layers.0 (encoder_embed) and 5 more",
        "schedule 'gpipe' with family 't5' stands in no case of the proofs, and what is not proven is refused",
        "change one of the two",
        {"plan/schedule": "1f1b"},
        edited(
            _SIDES,
            {
                "plan/groups": {"a": {"devices": "0-1", "mesh": {"x": 2}}, "b": {"devices": "2-3", "mesh": {"x": 2}}},
                "plan/stages": _in_halves(_ENCODER, "decoder_embed decoder.0-5 head"),
            },
        ),
    ),
    Case(
        "runtime-sides",
        {"plan/stages/0/layers/4/roles/tp": "dp"},
        "stages.0.layers.4 (decoder.0-5)",
        "all layers of a model with an encoder and a decoder see what others made, and this row has other dp and tp "
        "and tp+sp axes than stages.0.layers.0 (encoder_embed)",
        "give all layers the same",
        {"plan/stages/0/layers/4/roles/tp": "tp"},
        _SIDES,
    ),
    Case(
        "runtime-core-dropout",
        {"plan/stages/0/layers/1/recompute": "selective"},
        "stages.0.layers.1 (encoder.0-5)",
        "the runtime does not draw the dropout of attention anew that looks both ways or at another stream",
        "write 'recompute: full'",
        {"plan/stages/0/layers/1/recompute": "full"},
        _SIDES,
    ),
    Case(
        "runtime-statistics-recompute",
        {"plan/stages/0/layers/0/recompute": "full"},
        "stages.0.layers.0 (block.0-3)",
        "recompute 'full' would add a micro-batch to the running statistics of its batch norms once more",
        "write 'recompute: none'",
        {"plan/stages/0/layers/0/recompute": "none"},
        _NETWORK,
    ),
    Case(
        "runtime-family-split",
        {"model/family": "mistral", "plan/stages/0/layers/1/roles/dp": "cp"},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not run 'cp' with family 'mistral' yet",
        "write 'dp' or 'tp'",
        {"plan/stages/0/layers/1/roles/dp": "tp"},
    ),
    Case(
        "runtime-family-stages",
        {"plan/groups": HALVES, "plan/stages": _in_halves("block.0-1", "block.2-3")},
        "stages",
        "the runtime does not run family 'resnet' on several stages yet",
        "put all layers into one stage",
        {"plan/groups": RUNS["plan"]["groups"], "plan/stages": _NETWORK["plan"]["stages"]},
        _NETWORK,
    ),
    Case(
        "runtime-side-stages",
        {"plan/groups": HALVES, "plan/stages": _in_halves(f"{_ENCODER} decoder_embed", "decoder.0-5 head")},
        "stages.1",
        "the runtime cuts a model with an encoder and a decoder before 'decoder_embed', each stage on a group of its "
        "own",
        "let a stage begin at 'decoder_embed'",
        {"plan/stages": _in_halves(_ENCODER, "decoder_embed decoder.0-5 head")},
        _SIDES,
    ),
    Case(
        "runtime-family-attention-dropout",
        {"model": data_of(gpt2(attention_dropout=0.1)), "model/family": "opt"},
        "model",
        "model 'tiny-gpt2' drops attention (0.1), which is not proven for its family",
        "give the model an attention dropout of 0",
        {"model": data_of(gpt2())},
    ),
    Case(
        "runtime-family-precision",
        {"model/family": "mixtral", "recipe/precision": {"compute": "bf16"}},
        "recipe.precision",
        "the runtime is not proven with masters beside what it computes with for family 'mixtral' yet",
        "write 'compute: fp32', 'reduce: fp32' and 'master: null'",
        {"recipe/precision": {"compute": "fp32", "master": None}},
    ),
    Case(
        "runtime-fused-heads",
        {"model": _tiny("phi3", num_key_value_heads=2)},
        "stages.0.layers.1 (decoder.0-1)",
        "queries, keys and values come from one matrix, and its 2 KV heads are fewer than 4 tensor ranks",
        "write a tp of 2, or 'dp'",
        {"plan/stages/0/layers/1/roles/dp": "dp"},
    ),
    Case(
        "runtime-own-core",
        {"model": data_of(_own()), "plan/stages/0/layers/1/recompute": "selective"},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime finds no core attention in a traced model to compute again or to keep",
        "write 'recompute: full'",
        {"plan/stages/0/layers/1/recompute": "full"},
    ),
    Case(
        "runtime-alibi",
        {
            "model": _tiny("falcon", alibi=True, multi_query=False, parallel_attn=False),
            "plan/stages/0/layers/2/roles": {"dp": "dp", "tp": "dp"},
        },
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not cut attention with biases by distance (ALiBi) over heads yet",
        "write 'dp'",
        {"plan/stages/0/layers/1/roles": {"dp": "dp", "tp": "dp"}},
    ),
    Case(
        "runtime-inner-dropout",
        {"model/stacks/1/parts/1/operators": [*data_of(llama())["stacks"][1]["parts"][1]["operators"]]}
        | {"plan/stages/0/layers/2/roles": {"dp": "dp", "tp": "dp"}, "model/stacks/1/parts/1/operators/3": _INNER},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not draw dropout that is called as a function between matrices that tp cuts yet",
        "write 'dp', or give that dropout a probability of 0",
        {"model/stacks/1/parts/1/operators/3/probability": 0.0},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case, RUNS)


def test_an_own_network_is_known_by_what_it_is_made_of() -> None:
    network = ModelSpec.from_data(edited(data_of(resnet()), {"source": "traced from hers"}))
    assert is_own_network(network)
    assert not any(is_own_network(each) for each in (resnet(), _own(), gpt2()))


def test_an_own_decoder_is_known_by_what_it_is_made_of() -> None:
    assert is_own_decoder(_own())
    attention = "stacks/1/parts/0/operators"
    core = next(
        place for place, each in enumerate(data_of(llama())["stacks"][1]["parts"][0]["operators"]) if "heads" in each
    )
    unlike = [
        _own(source=""),
        _own(**{f"{attention}/{core}/causal": False}),
        _own(**{f"{attention}/{core}/window": 4}),
        _own(**{f"{attention}/0/kind": "batch"}),
        _own(**{"stacks/2/output": 32}),
        resnet(),
    ]
    assert not any(is_own_decoder(each) for each in unlike)
