"""Rules about what a plan is for: their words, and that their fixes mend."""

import pytest

from meshwright.cluster.shorthand import parse_cluster
from tests.plan.models import data_of, listener, llama, resnet
from tests.plan.rule_cases import DELETE, PIPELINE, Case, edited, hold, said_by


def cluster(text: str) -> dict[str, object]:
    """A cluster's data from its shorthand."""
    return {"meshwright_cluster": 1} | parse_cluster(text).as_data()


FINGERPRINT = llama().fingerprint
CLUSTER = parse_cluster("8xh100").fingerprint
LISTENER = edited(PIPELINE, {"model": data_of(listener()), "recipe/sequence": {"audio": 48, "tokens": 32}})
RESNET = edited(PIPELINE, {"model": data_of(resnet()), "recipe/micro_batches": 4})

CASES = [
    Case(
        "model-agrees",
        {"plan/model/fingerprint": "0123456789abcdef"},
        "model.fingerprint",
        f"the plan was made for a model with fingerprint 0123456789abcdef, and this one has {FINGERPRINT}",
        f"give the model that it was made for, or write {FINGERPRINT}",
        {"plan/model/fingerprint": FINGERPRINT},
    ),
    Case(
        "made-for-another",
        {"plan/cluster/fingerprint": "0123456789abcdef"},
        "cluster.fingerprint",
        "the plan was made for another cluster (fingerprint 0123456789abcdef); "
        f"what is said here holds for this one ({CLUSTER})",
        f"give the cluster that it was made for, or write {CLUSTER}",
        {"plan/cluster/fingerprint": CLUSTER},
    ),
    Case(
        "batch-agrees",
        {"recipe/global_batch": 32},
        "recipe.global_batch",
        "the plan says a global batch of 16, and the recipe 32",
        "write 32",
        {"plan/recipe/global_batch": 32},
    ),
    Case(
        "sequence-agrees",
        {"recipe/sequence": {"tokens": 64}},
        "recipe.sequence",
        "the plan says 32 positions of stream 'tokens', and the recipe 64",
        "write 64",
        {"plan/recipe/sequence": 64},
    ),
    Case(
        "sequence-is-in-reach",
        {"model/streams": {"tokens": {"limit": 16}}},
        "recipe.sequence",
        "32 positions of stream 'tokens' are more than the 16 that model 'tiny' has places for",
        "use a sequence of 16 or less",
        {"plan/recipe/sequence": 16, "recipe/sequence": 16},
    ),
    Case(
        "micro-batches-agree",
        {"recipe/micro_batches": 8},
        "micro_batches",
        "the recipe fixes 8 micro-batches, and the plan has 4",
        "write 8",
        {"plan/micro_batches": 8},
    ),
    Case(
        "batch-statistics-are-fixed",
        {"recipe/micro_batches": DELETE},
        "recipe.micro_batches",
        "model 'resnet' takes statistics over a micro-batch, and the recipe does not fix the number of micro-batches",
        "write 'micro_batches: 4' in the recipe",
        {"recipe/micro_batches": 4},
        RESNET,
    ),
    Case(
        "streams-have-their-own-lengths",
        {"model/streams": {"audio": {}, "tokens": {}}, "recipe/sequence": 48, "plan/recipe/sequence": 48},
        "recipe.sequence",
        "streams 'audio' and 'tokens' of model 'listener' are all taken to be 48 positions long",
        "say each of them: 'sequence: {audio: 48, tokens: 48}' in the recipe, or '--seq audio=48,tokens=48'",
        {"recipe/sequence": {"audio": 48, "tokens": 48}},
        LISTENER,
    ),
    Case(
        "stream-has-a-length",
        {"recipe/sequence": {"audio": 48}},
        "recipe.sequence",
        "neither model 'listener' nor the recipe says how long stream 'tokens' is",
        "add 'tokens' to the recipe's sequence",
        {"recipe/sequence": {"audio": 48, "tokens": 32}},
        LISTENER,
    ),
    Case(
        "stream-is-known",
        {"recipe/sequence": {"token": 32, "tokens": 32}},
        "recipe.sequence",
        "model 'listener' has no stream 'token'",
        "write 'tokens'",
        {"recipe/sequence": {"tokens": 32}},
        LISTENER,
    ),
    Case(
        "length-has-an-effect",
        {"recipe/sequence/audio": 50},
        "recipe.sequence",
        "the length 50 of stream 'audio' has no effect: the model fixes it at 48",
        "write 48",
        {"recipe/sequence/audio": 48},
        LISTENER,
    ),
    Case(
        "devices-have-the-dtype",
        {"cluster": cluster("8xv100")},
        "recipe.precision.compute",
        "device 'v100' does not compute in bf16; it has fp64, fp32 and fp16",
        "compute in fp16",
        {"recipe/precision": {"compute": "fp16"}},
    ),
    Case(
        "devices-have-the-dtype",
        {"cluster": cluster("cpu:8"), "recipe/precision": {"compute": "fp16"}},
        "recipe.precision.compute",
        "device 'cpu' does not compute in fp16; it has fp64, fp32 and bf16",
        "compute in bf16",
        {"recipe/precision/compute": "bf16"},
    ),
    Case(
        "devices-have-the-matmul",
        {"recipe/precision": {"matmul": "fp4"}},
        "recipe.precision.matmul",
        "device 'h100' does not multiply in fp4; it has fp64, fp32, tf32, fp16, bf16 and fp8",
        "write 'fp8'",
        {"recipe/precision/matmul": "fp8"},
    ),
    Case(
        "devices-have-the-matmul",
        {"recipe/precision": {"matmul": "fp8"}, "cluster": cluster("4xh100+4xa100-80gb")},
        "recipe.precision.matmul",
        "device 'a100-80gb' does not multiply in fp8; it has fp64, fp32, tf32, fp16 and bf16",
        "remove it",
        {"recipe/precision/matmul": DELETE},
    ),
    Case(
        "scaling-has-an-effect",
        {"recipe/precision": {"scaling": "rows"}},
        "recipe.precision.scaling",
        "scales of rows have no effect: products are in bf16, which is not scaled",
        "remove it, or write 'matmul: fp8'",
        {"recipe/precision": {"matmul": "fp8", "scaling": "rows"}},
    ),
    Case(
        "frozen-is-known",
        {"recipe/trainable": {"frozen": ["decodr.0-3"]}},
        "recipe.trainable.frozen.0",
        "model 'tiny' has no layers 'decodr.0-3' to freeze",
        "write 'decoder.0-3'",
        {"recipe/trainable/frozen/0": "decoder.0-3"},
    ),
    Case(
        "frozen-is-known",
        {"recipe/trainable": {"frozen": ["the head"]}},
        "recipe.trainable.frozen.0",
        "model 'tiny' has no layers 'the head' to freeze",
        "write 'head'",
        {"recipe/trainable/frozen/0": "head"},
    ),
    Case(
        "something-learns",
        {"recipe/trainable": {"frozen": ["embed", "decoder.0-3", "head"]}},
        "recipe.trainable.frozen",
        "all of model 'tiny' is frozen, and there are no adapters",
        "leave 'head' out of what is frozen",
        {"recipe/trainable/frozen": ["embed", "decoder.0-3"]},
    ),
    Case(
        "adapter-has-a-target",
        {"recipe/trainable": {"lora": {"rank": 8, "targets": ["q_porj", "v_proj"]}}},
        "recipe.trainable.lora.targets",
        "model 'tiny' has no linear operator whose path ends in 'q_porj'",
        "write 'q_proj'",
        {"recipe/trainable/lora/targets/0": "q_proj"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case)


def test_a_length_for_all_streams_agrees_with_the_same_length_by_stream() -> None:
    problems = said_by(edited(PIPELINE, {"recipe/sequence": {"tokens": 32}}))
    assert [problem for problem in problems if problem.rule == "sequence-agrees"] == []
