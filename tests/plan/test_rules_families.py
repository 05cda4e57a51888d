"""Rules of the runtime by family: their words, and that their fixes mend; which own models it takes."""

from typing import Any

import pytest

from meshwright.model.hf_config import from_config
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules_families import is_own_decoder
from tests.plan.models import data_of, gpt2, llama, resnet
from tests.plan.rule_cases import Case, edited, hold
from tests.plan.test_rules_runtime import HALVES, RUNS, TWO_STAGES

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
_INNER = {"op": "dropout", "width": 48, "probability": 0.1, "path": "act"}


def _tiny(kind: str, **fields: Any) -> dict[str, Any]:
    return data_of(from_config({"model_type": kind, **_SIZES, **fields}, "tiny"))


def _own(**edits: Any) -> ModelSpec:
    return ModelSpec.from_data(edited(data_of(llama()), {"family": "Hers", "source": "traced from hers", **edits}))


CASES = [
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
        {"model/family": "falcon", "plan/groups": HALVES, "plan/stages": TWO_STAGES},
        "stages",
        "the runtime does not run family 'falcon' on several stages yet",
        "put all layers into one stage",
        {"plan/groups": RUNS["plan"]["groups"], "plan/stages": RUNS["plan"]["stages"]},
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
        "the runtime finds no core attention in a traced model to compute again",
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
        "the runtime does not draw dropout between matrices that tp cuts yet",
        "write 'dp', or give that dropout a probability of 0",
        {"model/stacks/1/parts/1/operators/3/probability": 0.0},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case, RUNS)


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
