"""Rules of the runtime: their words, and that their fixes mend."""

import pytest

from meshwright.cluster.shorthand import parse_cluster
from meshwright.model.hf_config import FAMILIES
from meshwright.plan.rules import RULES, check_plan
from meshwright.plan.rules_families import FAMILIES as PROVEN
from tests.plan.models import data_of, gpt2, llama, mixture, resnet
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
CPUS_5 = {"meshwright_cluster": 1} | parse_cluster("cpu:5").as_data()
HALVES = {"a": {"devices": "0-1", "mesh": {"x": 2}}, "b": {"devices": "2-3", "mesh": {"x": 2}}}
TWO_STAGES = [
    {"on": "a", "layers": [{"span": "embed", "roles": {"x": "dp"}}, {"span": "decoder.0-1", "roles": {"x": "tp"}}]},
    {"on": "b", "layers": [{"span": "decoder.2-3", "roles": {"x": "dp"}}, {"span": "head", "roles": {"x": "dp"}}]},
]
ZB = {"plan/schedule": "zb-h1"}
EXPERTS = {"span": "decoder.1", "part": "experts", "roles": {"dp": "dp", "tp": "ep"}}
MIXTURE = edited(
    RUNS,
    {
        "model": data_of(mixture(llama())),
        "plan/stages/0/layers/1/roles": {"dp": "dp", "tp": "dp"},
        "plan/stages/0/layers/2/roles": {"dp": "dp/zero3", "tp": "dp"},
    },
)
"""Experts in layers that run as they are."""
SOFT_CAP = {"op": "activation", "function": "softcap", "width": 64}
RULE = {rule.name: rule for rule in RULES}
A_FAMILY = (
    "take a model of the family llama, gpt2, mistral, qwen3, phi3, gemma3_text, gpt_neox, opt, mixtral, qwen3_moe, "
    "falcon, bert, vit, t5, whisper, or trace your own decoder or network of convolutions"
)
NOT_RUN = "the runtime does not run '{}' yet"

CASES = [
    Case(
        "runtime-ranks",
        {"plan/groups/all/devices": "0,2,1,4", "cluster": CPUS_5},
        "groups",
        "the runtime's processes are numbered without gaps, and the groups have devices 0-2,4",
        "use devices 0-3",
        {"plan/groups/all/devices": "0,2,1,3"},
    ),
    Case(
        "runtime-halves",
        {
            "plan/groups": HALVES,
            "plan/stages": TWO_STAGES,
            "plan/stages/1/layers/1/roles": {"x": "dp/zero1"},
            "plan/schedule": "zb-h1",
        },
        "stages.1.layers.1 (head)",
        "'zb-h1' cuts backwards in halves, and FSDP2 lets go of parameters and reduces gradients after the first",
        "write 'dp'",
        {"plan/stages/1/layers/1/roles": {"x": "dp"}},
    ),
    Case(
        "runtime-halves-recompute",
        {
            "plan/groups": HALVES,
            "plan/stages": TWO_STAGES,
            "plan/stages/0/layers/1/recompute": "full",
            "plan/schedule": "zb-h1",
        },
        "stages.0.layers.1 (decoder.0-1)",
        "'zb-h1' cuts backwards in halves, and torch recomputes a layer for the first and again for each of its "
        "weights",
        "write 'recompute: selective', or none",
        {"plan/stages/0/layers/1/recompute": "selective"},
    ),
    Case(
        "runtime-part",
        {"plan/stages/0/layers/4": {"span": "decoder.0", "part": "mlp", "roles": {"dp": "dp", "tp": "tp"}}},
        "stages.0.layers.4 (decoder.0 mlp)",
        "the runtime gives routed experts roles of their own, and not part 'mlp' yet",
        "remove the row",
        {"plan/stages/0/layers/4": DELETE},
    ),
    Case(
        "runtime-experts-cut",
        {"plan/stages/0/layers/1/roles/tp": "tp"},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not cut experts by 'tp' yet",
        "add a row with 'part: experts', and 'ep' or 'dp' on that axis",
        {"plan/stages/0/layers/4": EXPERTS},
        MIXTURE,
    ),
    Case(
        "runtime-experts-recompute",
        {"plan/stages/0/layers/4": EXPERTS, "plan/stages/0/layers/1/recompute": "full"},
        "stages.0.layers.4 (decoder.1 experts)",
        "the runtime recomputes part 'experts' as the rest of its layer",
        "write 'recompute: full'",
        {"plan/stages/0/layers/4/recompute": "full"},
        MIXTURE,
    ),
    Case(
        "runtime-recompute",
        {"plan/stages/0/layers/1/recompute": {"repeat": ["norm"]}},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not recompute what some operators put out and keep the rest yet",
        "write 'recompute: full'",
        {"plan/stages/0/layers/1/recompute": "full"},
    ),
    Case(
        "runtime-recompute-save",
        {"plan/stages/0/layers/1/recompute": {"save": ["matmul"]}},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not keep what 'save: matmul' names beside routed experts yet",
        "write 'recompute: full'",
        {"plan/stages/0/layers/1/recompute": "full"},
        MIXTURE,
    ),
    Case(
        "runtime-recompute-save",
        {"model/family": "falcon", "plan/stages/0/layers/1/recompute": {"save": ["qkv", "matmul"]}},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not keep what 'save: matmul' names beside additions in place yet",
        "leave it out",
        {"plan/stages/0/layers/1/recompute": {"save": ["qkv"]}},
    ),
    Case(
        "runtime-recompute-save",
        {
            "plan/stages/0/layers/1/roles/dp": "ulysses",
            "plan/stages/0/layers/1/recompute": {"save": ["attention", "collective"]},
        },
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not keep what 'save: collective' names beside 'ulysses' yet",
        "leave it out",
        {"plan/stages/0/layers/1/recompute": {"save": ["attention"]}},
    ),
    Case(
        "runtime-recompute-save",
        {
            "plan/stages/0/layers/1/roles/dp": "cp",
            "plan/stages/0/layers/1/recompute": {"save": ["matmul", "collective"]},
        },
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime does not keep what 'save: collective' names beside 'cp' alone yet",
        "add 'attention', or leave it out",
        {"plan/stages/0/layers/1/recompute": {"save": ["matmul", "collective", "attention"]}},
    ),
    Case(
        "runtime-recompute-modules",
        {"plan/stages/0/layers/3/recompute": "full"},
        "stages.0.layers.3 (head)",
        "'head' is several modules, and the runtime recomputes layers that are one",
        "write 'recompute: none'",
        {"plan/stages/0/layers/3/recompute": "none"},
    ),
    Case(
        "runtime-recompute-core",
        {"plan/stages/0/layers/1/recompute": "selective", "plan/execution": {"kernels": "hf-eager"}},
        "stages.0.layers.1 (decoder.0-1)",
        "the runtime recomputes or keeps a core attention that is one function, and that of 'hf-eager' is several",
        "write 'recompute: full', or build the model with attn_implementation='sdpa' and write 'kernels: hf-sdpa'",
        {"plan/execution/kernels": "hf-sdpa"},
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
        "runtime-attention-dropout",
        {"model": data_of(gpt2(attention_dropout=0.1))},
        "model",
        "model 'tiny-gpt2' drops attention (0.1), and the runtime draws that from its counter in an attention of plain "
        "products, which takes longer and more memory than torch's",
        "give the model an attention dropout of 0",
        {"model": data_of(gpt2())},
    ),
    Case(
        "runtime-ring-recompute",
        {"plan/stages/0/layers/1": ROWS[1] | {"roles": {"dp": "cp", "tp": "tp"}, "recompute": "selective"}},
        "stages.0.layers.1 (decoder.0-1)",
        "recompute 'selective' has no effect on a ring, which keeps no attention weights",
        "write 'recompute: none'",
        {"plan/stages/0/layers/1/recompute": "none"},
    ),
    Case(
        "runtime-ties",
        {"model": data_of(gpt2()), "plan/stages/0/layers/3/roles": {"dp": "dp/zero3", "tp": "tp"}},
        "stages.0.layers.3 (head)",
        "'head' shares a parameter with 'embed', and the runtime keeps it in one sharding",
        "write {dp: dp, tp: tp} on a mesh {dp: 2, tp: 2} for both",
        {"plan/stages/0/layers/3/roles": {"dp": "dp", "tp": "tp"}},
    ),
    Case(
        "runtime-ties-of-stages",
        {
            "model": data_of(gpt2()),
            "plan/groups": HALVES,
            "plan/stages": [
                {"on": "a", "layers": [{"span": "embed", "roles": {"x": "dp/zero3"}}]},
                {"on": "b", "layers": [{"span": "decoder.0-1", "roles": {"x": "dp"}}]},
                {"on": "a", "layers": [{"span": "decoder.2-3", "roles": {"x": "dp"}}]},
                {
                    "on": "b",
                    "layers": [{"span": "head", "roles": {"x": "dp/zero3"}}],
                },
            ],
            "plan/stages/3/on": "a",
            "plan/stages/2/on": "b",
            "plan/schedule": "zbv",
        },
        "stages.3.layers.0 (head)",
        "a parameter is shared with 'embed' in stage 0 on the same devices, and FSDP2 cannot gather it for each stage "
        "by itself",
        "remove 'zero3' from both",
        {"plan/stages/0/layers/0/roles": {"x": "dp"}, "plan/stages/3/layers/0/roles": {"x": "dp"}},
    ),
    Case(
        "runtime-family",
        {"model": data_of(resnet())},
        "model.family",
        NOT_RUN.format("family: resnet"),
        A_FAMILY,
        {"model": data_of(gpt2())},
    ),
    Case(
        "runtime-compute",
        {"recipe/precision": {"compute": "fp16"}},
        "recipe.precision.compute",
        NOT_RUN.format("compute: fp16"),
        "write fp32 or fp64 or bf16",
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
        "runtime-loss",
        {"recipe/loss": {"kind": "seq2seq"}},
        "recipe.loss.kind",
        "the loss 'seq2seq' is not that of 'tiny', which puts out a value for each position",
        "write 'causal_lm' or 'masked_lm'",
        {"recipe/loss/kind": "causal_lm"},
    ),
    Case(
        "runtime-chunks",
        {"recipe/loss": {"chunks": 4}, "model/stacks/2/parts/0/operators/2": SOFT_CAP},
        "recipe.loss.chunks",
        "the runtime takes logits in 4 pieces of the sequence where they are what a matrix puts out for each position, "
        "and those of 'tiny' are not",
        "write 'chunks: 1'",
        {"recipe/loss/chunks": 1},
    ),
    Case(
        "runtime-chunks-kept",
        {"recipe/loss": {"chunks": 4}, "plan/schedule": "gpipe"},
        "schedule",
        "logits in pieces have their gradients in forward, and 'gpipe' keeps those of the head's matrix for each of 4 "
        "micro-batches",
        "write 'schedule: 1f1b'",
        {"plan/schedule": "1f1b"},
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
        {"plan/execution": {"overlap": ["gradients", "weights"]}},
        "execution.overlap",
        "overlap of 'weights' has no effect in the runtime, which waits for each exchange before the next product",
        "write 'overlap: [gradients]', and the estimate is of what runs",
        {"plan/execution/overlap": ["gradients"]},
    ),
    Case(
        "runtime-blocking",
        {"plan/execution": {"blocking": True}},
        "execution.blocking",
        "blocking has no effect in the runtime, which launches kernels as its environment says",
        "write 'blocking: false', and the estimate is of what runs",
        {"plan/execution/blocking": False},
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
        "runtime-segments",
        {"plan/execution": {"expandable_segments": True}},
        "execution.expandable_segments",
        "expandable_segments have no effect in the runtime, which leaves the allocator as it is started",
        "write 'expandable_segments: false', and the estimate is of what runs",
        {"plan/execution/expandable_segments": False},
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
        "the runtime computes, reduces and steps in one dtype, or in bf16, fp32 and fp32, and the recipe has fp64, "
        "fp32 and fp32",
        "write 'reduce: fp64' and 'master: null'",
        {"recipe/precision/reduce": "fp64", "recipe/precision/master": None},
    ),
    Case(
        "runtime-one-dtype",
        {"recipe/precision": {"compute": "bf16", "reduce": "bf16", "master": "fp32"}},
        "recipe.precision",
        "the runtime computes, reduces and steps in one dtype, or in bf16, fp32 and fp32, and the recipe has bf16, "
        "bf16 and fp32",
        "write 'reduce: fp32' and 'master: fp32'",
        {"recipe/precision/reduce": "fp32"},
    ),
    Case(
        "runtime-mixed-halves",
        {"recipe/precision": {"compute": "bf16"}, "plan/groups": HALVES, "plan/stages": TWO_STAGES, **ZB},
        "recipe.precision",
        "'zb-h1' cuts backwards in halves, and FSDP2, which casts parameters, lets go of them after the first",
        "write 'schedule: 1f1b'",
        {"plan/schedule": "1f1b"},
    ),
    Case(
        "runtime-mixed-chunks",
        {"recipe/precision": {"compute": "bf16"}, "recipe/loss": {"chunks": 4}},
        "recipe.loss.chunks",
        "a loss in 4 pieces is not proven with masters beside what is computed with",
        "write 'chunks: 1'",
        {"recipe/loss": {"chunks": 1}},
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


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in PROVEN] + ["hers"])
def test_a_family_that_is_not_proven_is_refused_whatever_its_layers(family: str) -> None:
    problems = check_plan(inputs_of(edited(RUNS, {"model/family": family})), "runtime")
    assert [(problem.rule, problem.fix) for problem in problems] == [("runtime-family", A_FAMILY)]
    assert f"'family: {family}'" in problems[0].message
