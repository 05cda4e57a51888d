"""Rules of the runtime: their words, and that their fixes mend."""

import pytest

from meshwright.cluster.shorthand import parse_cluster
from meshwright.model.hf_config import FAMILIES
from meshwright.plan.rules import RULES, check_plan
from meshwright.plan.rules_runtime import PROVEN, PROVEN_SPLITS
from meshwright.plan.spec import SPLITS
from tests.plan.models import data_of, gpt2, llama, resnet
from tests.plan.rule_cases import DELETE, PIPELINE, Case, edited, hold, inputs_of

ROWS = [
    {"span": "embed", "roles": {"dp": "dp", "tp": "tp"}},
    {"span": "decoder.0-1", "roles": {"dp": "tp", "tp": "tp"}},
    {"span": "decoder.2-3", "roles": {"dp": "dp/zero3", "tp": "tp"}},
    {"span": "head", "roles": {"dp": "dp", "tp": "tp"}},
]
RUNS = edited(
    PIPELINE,
    {
        "cluster": {"meshwright_cluster": 1} | parse_cluster("cpu:4").as_data(),
        "plan/groups": {"all": {"devices": "0-3", "mesh": {"dp": 2, "tp": 2}}},
        "plan/stages": [{"on": "all", "layers": ROWS}],
        "recipe/precision": {"compute": "fp32", "master": None},
    },
)
"""A plan that the runtime runs: unlike neighbours on one mesh of four CPU processes."""
RULE = {rule.name: rule for rule in RULES}
NOT_RUN = "the runtime does not run '{}' yet"

CASES = [
    Case(
        "runtime-one-stage",
        {"plan/stages": [{"on": "all", "layers": ROWS[:2]}, {"on": "all", "layers": ROWS[2:]}]},
        "stages",
        "the runtime runs one stage on one group, and the plan has 2 on 1: pipelines are not proven yet",
        "put all layers into one stage",
        {"plan/stages": [{"on": "all", "layers": ROWS}]},
    ),
    Case(
        "runtime-ranks",
        {"plan/groups/all/devices": "0,2,1,3"},
        "groups.all.devices",
        "the runtime runs on all ranks in their order",
        "write 'devices: 0-3'",
        {"plan/groups/all/devices": "0-3"},
    ),
    Case(
        "runtime-split",
        {"plan/stages/0/layers/0/roles/tp": "tp+sp"},
        "stages.0.layers.0 (embed)",
        "the runtime does not run 'tp+sp' yet",
        "write 'tp'",
        {"plan/stages/0/layers/0/roles/tp": "tp"},
    ),
    Case(
        "runtime-split",
        {"plan/stages/0/layers/0/roles/dp": "cp/zero3"},
        "stages.0.layers.0 (embed)",
        "the runtime does not run 'cp' yet",
        "write 'dp'",
        {"plan/stages/0/layers/0/roles/dp": "dp/zero3"},
    ),
    Case(
        "runtime-state",
        {"plan/stages/0/layers/0/roles/dp": "dp/zero1"},
        "stages.0.layers.0 (embed)",
        "the runtime does not run 'zero1' yet",
        "write 'zero3', or none",
        {"plan/stages/0/layers/0/roles/dp": "dp/zero3"},
    ),
    Case(
        "runtime-part",
        {"plan/stages/0/layers/4": {"span": "decoder.0", "part": "mlp", "roles": {"dp": "dp", "tp": "tp"}}},
        "stages.0.layers.4 (decoder.0 mlp)",
        "the runtime does not give part 'mlp' roles of its own yet",
        "remove the row",
        {"plan/stages/0/layers/4": DELETE},
    ),
    Case(
        "runtime-recompute",
        {"plan/stages/0/layers/1/recompute": "full"},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not recompute yet",
        "write 'recompute: none'",
        {"plan/stages/0/layers/1/recompute": "none"},
    ),
    Case(
        "runtime-offload",
        {"plan/stages/0/layers/1/offload": {"optimizer": "cpu"}},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not offload yet",
        "remove 'offload'",
        {"plan/stages/0/layers/1/offload": DELETE},
    ),
    Case(
        "runtime-kv-heads",
        {"model": data_of(llama(kv_heads=2))},
        "stages.0.layers.1 (decoder.0-1)",
        "2 KV heads do not divide over tp 4, and the runtime does not copy them yet",
        "use tp 2",
        {"plan/stages/0/layers/1/roles/dp": "dp"},
    ),
    Case(
        "runtime-vocabulary",
        {"model": data_of(llama(rows=65))},
        "stages.0.layers.0 (embed) and 1 more",
        "a vocabulary of 65 does not divide over tp 2, and the runtime does not pad it yet",
        "use tp 1",
        {"plan/stages/0/layers/0/roles/tp": "dp", "plan/stages/0/layers/3/roles/tp": "dp"},
    ),
    Case(
        "runtime-attention-dropout",
        {"model": data_of(gpt2(attention_dropout=0.1))},
        "model",
        "model 'tiny-gpt2' drops attention (0.1), and the runtime cannot draw that alike under all plans yet",
        "give the model an attention dropout of 0, or plan for one device",
        {"model": data_of(gpt2())},
    ),
    Case(
        "runtime-ties",
        {"model": data_of(gpt2()), "plan/stages/0/layers/3/roles": {"dp": "dp/zero3", "tp": "tp"}},
        "stages.0.layers.3 (head)",
        "'head' shares a parameter with 'embed', and the runtime keeps it in one sharding",
        "write {dp: dp, tp: tp} for both",
        {"plan/stages/0/layers/3/roles": {"dp": "dp", "tp": "tp"}},
    ),
    Case(
        "runtime-schedule",
        {"plan/schedule": "zb-h1"},
        "schedule",
        NOT_RUN.format("schedule: zb-h1"),
        "write 1f1b",
        {"plan/schedule": "1f1b"},
    ),
    Case(
        "runtime-family",
        {"model": data_of(resnet())},
        "model.family",
        NOT_RUN.format("family: resnet"),
        "take a model of the family llama or gpt2",
        {"model": data_of(gpt2())},
    ),
    Case(
        "runtime-compute",
        {"recipe/precision": {"compute": "bf16"}},
        "recipe.precision.compute",
        NOT_RUN.format("compute: bf16"),
        "write fp32 or fp64",
        {"recipe/precision/compute": "fp32"},
    ),
    Case(
        "runtime-matmul",
        {"recipe/precision/matmul": "fp8"},
        "recipe.precision.matmul",
        NOT_RUN.format("matmul: fp8"),
        "remove it",
        {"recipe/precision/matmul": DELETE},
    ),
    Case(
        "runtime-optimizer",
        {"recipe/optimizer": {"name": "lion"}},
        "recipe.optimizer.name",
        NOT_RUN.format("name: lion"),
        "write adamw or sgd",
        {"recipe/optimizer/name": "adamw"},
    ),
    Case(
        "runtime-loss",
        {"recipe/loss": {"kind": "seq2seq"}},
        "recipe.loss.kind",
        NOT_RUN.format("kind: seq2seq"),
        "write causal_lm",
        {"recipe/loss/kind": "causal_lm"},
    ),
    Case(
        "runtime-chunks",
        {"recipe/loss": {"chunks": 4}},
        "recipe.loss.chunks",
        NOT_RUN.format("chunks: 4"),
        "write 1",
        {"recipe/loss/chunks": 1},
    ),
    Case(
        "runtime-kernels",
        {"plan/execution": {"kernels": "megatron-flash"}},
        "execution.kernels",
        "kernels 'megatron-flash' have no effect in the runtime, which runs the module as it is",
        "write 'hf-sdpa', and the estimate is of what runs",
        {"plan/execution/kernels": "hf-sdpa"},
    ),
    Case(
        "runtime-overlap",
        {"plan/execution": {"overlap": ["gradients", "tensor"]}},
        "execution.overlap",
        "overlap of 'tensor' has no effect in the runtime, which moves each exchange in one piece",
        "write 'overlap: [gradients]', and the estimate is of what runs",
        {"plan/execution/overlap": ["gradients"]},
    ),
    Case(
        "runtime-prefetch",
        {"plan/execution": {"prefetch": 0}},
        "execution.prefetch",
        "prefetch 0 has no effect in the runtime: FSDP2 gathers one layer ahead by itself",
        "write 'prefetch: 1'",
        {"plan/execution/prefetch": 1},
    ),
    Case(
        "runtime-one-dtype",
        {"recipe/precision": {"compute": "fp64", "reduce": "fp32", "master": "fp32"}},
        "recipe.precision",
        "the runtime computes, reduces and steps in one dtype, and the recipe has fp64, fp32 and fp32",
        "write 'reduce: fp64' and 'master: null'",
        {"recipe/precision/reduce": "fp64", "recipe/precision/master": None},
    ),
    Case(
        "runtime-moments",
        {"recipe/optimizer": {"state": "bf16"}},
        "recipe.optimizer.state",
        "the optimizer's state 'bf16' has no effect: torch's optimizers keep moments in the parameters' dtype",
        "write 'state: fp32'",
        {"recipe/optimizer/state": "fp32"},
    ),
    Case(
        "runtime-trainable",
        {"recipe/trainable": {"frozen": ["embed"]}},
        "recipe.trainable.frozen",
        "the runtime trains all parameters, and the recipe has 'frozen'",
        "remove 'frozen'",
        {"recipe/trainable": {}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case, RUNS)


def test_the_runtime_runs_the_plan_that_the_cases_break() -> None:
    assert check_plan(inputs_of(RUNS), "runtime") == []


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in PROVEN["model.family"]] + ["hers"])
def test_a_family_that_is_not_proven_is_refused_whatever_its_layers(family: str) -> None:
    problems = check_plan(inputs_of(edited(RUNS, {"model/family": family})), "runtime")
    assert [(problem.rule, problem.fix) for problem in problems] == [
        ("runtime-family", "take a model of the family llama or gpt2")
    ]
    assert f"'family: {family}'" in problems[0].message


@pytest.mark.parametrize("split", [split for split in SPLITS if split not in PROVEN_SPLITS])
def test_every_split_that_is_not_proven_is_refused(split: str) -> None:
    problems = list(RULE["runtime-split"].problems(inputs_of(edited(RUNS, {"plan/stages/0/layers/0/roles/dp": split}))))
    assert [problem.message for problem in problems] == [NOT_RUN.format(split)]


def test_one_device_may_drop_attention() -> None:
    alone = {
        "model": data_of(gpt2(attention_dropout=0.1)),
        "plan/groups/all": {"devices": "0", "mesh": {"dp": 1, "tp": 1}},
        "plan/stages/0/layers/2/roles/dp": "dp",
    }
    problems = check_plan(inputs_of(edited(RUNS, alone)), "runtime")
    assert [problem for problem in problems if problem.severity == "error"] == []
