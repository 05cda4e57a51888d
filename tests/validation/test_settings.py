"""Published rows as model, cluster, recipe and plan: of each source one in full, as it was worked out by hand."""

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import pytest

from meshwright.model.spans import span_names
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Repeat, Save
from meshwright.validation.assumed import assumptions_of
from meshwright.validation.layer_rows import recomputed_share
from meshwright.validation.rows import Measured, read_rows
from meshwright.validation.setting import setting_of
from meshwright.validation.stages import cut_by_cost, virtual_of
from meshwright.validation.unusable import Unusable

ROWS = {row.place: row for row in read_rows()}


class Told(NamedTuple):
    """All that a row decides, in few words."""

    cluster: str
    """Levels from the inside out: size and link, and cards where they are shared."""
    mesh: str
    groups: int
    layers: list[tuple[int, int]]
    """Runs of stages: how many, with how many numbered layers each."""
    roles: str
    """Of layers, slowest axis first."""
    experts: str
    recompute: dict[str, int]
    """What is recomputed in how many layers."""
    micro_batches: int
    schedule: str
    kernels: str
    overlap: str
    dtypes: str
    """Of computing, of reducing, and of matrix products where that is narrower."""
    parameters: float
    """In 1e9."""


KIND = {Save: "save", Repeat: "repeat"}


def told(inputs: Inputs) -> Told:
    plan, precision = inputs.plan, inputs.recipe.precision
    rows = [row for stage in plan.stages for row in stage.layers]
    parts = [row for row in rows if row.part]
    whole = [row for row in rows if not row.part]
    counts = [sum(name.startswith("decoder.") for name in stage.names()) for stage in plan.stages]
    done = Counter[str]()
    for row in whole:
        word = KIND.get(type(row.recompute), str(row.recompute))
        done[word] += sum(name.startswith("decoder.") for name in span_names(row.span))
    assert len({tuple(row.roles.items()) for row in whole}) == 1
    group = next(iter(plan.groups.values()))
    return Told(
        cluster=", ".join(
            f"{level.size} {level.link}" + (f" x{level.cards}" if level.cards else "")
            for level in inputs.cluster.pools[0].levels
        ),
        mesh=", ".join(f"{axis} {size}" for axis, size in group.mesh.items()),
        groups=len(plan.groups),
        layers=[(len(list(run)), count) for count, run in groupby(counts)],
        roles=" ".join(map(str, whole[0].roles.values())),
        experts=" ".join(map(str, parts[0].roles.values())) if parts else "",
        recompute={word: count for word, count in done.items() if count},
        micro_batches=plan.micro_batches,
        schedule=plan.schedule,
        kernels=plan.execution.kernels,
        overlap=" ".join(plan.execution.overlap),
        dtypes=" ".join(filter(None, (precision.compute, precision.reduce, precision.matmul))),
        parameters=round(inputs.model.parameters / 1e9, 1),
    )


FSDP = {"groups": 1, "micro_batches": 1, "schedule": "1f1b", "experts": "", "overlap": "gathers gradients"}
FP16 = {"experts": "", "kernels": "megatron-fused", "overlap": "", "dtypes": "fp16 fp16"}
NVIDIA = {"kernels": "megatron-flash", "overlap": "gathers gradients tensor"}
QUIET = NVIDIA | {"overlap": "gathers gradients weights"}
HIDDEN = NVIDIA | {"overlap": "gathers gradients"}
EXPECTED: dict[str, dict[str, Any]] = {
    # BLOOM-176B: 384 = 12 x 4 x 8; (70 + 2) / 12 = 6 with the embedding and the head; 2048 / (8 x 2) = 128.
    "bigscience.csv:96": {
        "cluster": "8 nvlink3, 48 omnipath-100 x4",
        "mesh": "dp 8, tp 4",
        "groups": 12,
        "layers": [(1, 5), (10, 6), (1, 5)],
        "roles": "dp/zero1 tp",
        "recompute": {"full": 70},
        "micro_batches": 128,
        "schedule": "1f1b",
        "parameters": 176.2,
        **FP16,
        "kernels": "megatron-deepspeed",
        "dtypes": "bf16 fp32",
    },
    # Grok-1 of 16 layers: 128 = 2 x 4 x 2 x 8; experts over etp 4 (not said: as tp), ep 8 = cp 2 x 4 of dp 8.
    "dgxc_bench.csv:35": {
        "cluster": "8 nvlink4, 16 ib-ndr400 x8",
        "mesh": "dp 2, ep 4, cp 2, tp 4",
        "groups": 2,
        "layers": [(16, 1)],
        "roles": "dp/zero1 dp/zero1 cp/zero1 tp+sp",
        "experts": "dp/zero1 ep ep tp+sp",
        "recompute": {"none": 16},
        "micro_batches": 128,
        "schedule": "interleaved",
        "dtypes": "bf16 bf16",
        "parameters": 80.3,
        **QUIET,
    },
    # Llama 405B cut to 30 layers: (30 + 2) / 32 = 1, so that embedding and head stand alone.
    "dgxc_bench.csv:14": {
        "cluster": "8 nvlink4, 8 ib-ndr400 x8",
        "mesh": "cp 2, tp 8",
        "groups": 4,
        "layers": [(1, 0), (30, 1), (1, 0)],
        "roles": "cp/zero1 tp+sp",
        "experts": "",
        "recompute": {"none": 30},
        "micro_batches": 64,
        "schedule": "interleaved",
        "dtypes": "bf16 fp32",
        "parameters": 99.9,
        **NVIDIA,
    },
    # MaxText: 16 x 8 shard together, 4 of these are replicas.
    "dgxc_bench.csv:110": FSDP
    | {
        "cluster": "8 nvlink4, 64 ib-ndr400 x8",
        "mesh": "dp_replica 4, dp 128",
        "layers": [(1, 80)],
        "roles": "dp dp/zero3",
        "recompute": {"save": 80},
        "kernels": "torch-compile",
        "dtypes": "bf16 bf16",
        "parameters": 70.6,
    },
    # Maverick: 256 = 2 x 128; 64 ways over 128 experts, in every second layer.
    "dgxc_bench.csv:135": {
        "cluster": "4 nvlink5, 16 nvlink5, 4 ib-ndr400 x64",
        "mesh": "dp 2, ep 64",
        "groups": 2,
        "layers": [(24, 2)],
        "roles": "dp/zero1 dp/zero1",
        "experts": "dp/zero1 ep",
        "recompute": {"none": 48},
        "micro_batches": 16,
        "schedule": "interleaved",
        "dtypes": "bf16 bf16",
        "parameters": 400.7,
        **QUIET,
    },
    # HFU 69, MFU 61: 3 (69 / 61 - 1) = 0.39 of 40 layers.
    "fms_fsdp.csv:4": FSDP
    | {
        "cluster": "8 nvlink3, 16 efa-100 x4",
        "mesh": "dp 128",
        "layers": [(1, 40)],
        "roles": "dp/zero3",
        "recompute": {"none": 25, "full": 15},
        "kernels": "torch-compile",
        "dtypes": "bf16 bf16",
        "parameters": 13.0,
    },
    "fms_fsdp.csv:2": FSDP
    | {
        "cluster": "8 nvlink3, 16 efa-100 x4",
        "mesh": "dp_replica 16, dp 8",
        "layers": [(1, 32)],
        "roles": "dp dp/zero3",
        "recompute": {"none": 32},
        "kernels": "torch-compile",
        "dtypes": "bf16 bf16",
        "parameters": 6.7,
    },
    # 2048 / (32 x 8) = 8.
    "hagemann2023.csv:3": {
        "cluster": "8 nvlink3, 8 ib-hdr200 x8",
        "mesh": "dp 32, tp 2",
        "groups": 1,
        "layers": [(1, 40)],
        "roles": "dp/zero1 tp",
        "experts": "",
        "recompute": {"none": 40},
        "micro_batches": 8,
        "schedule": "1f1b",
        "kernels": "megatron-flash-norm",
        "overlap": "",
        "dtypes": "bf16 bf16",
        "parameters": 14.0,
    },
    "internevo.csv:9": {
        "cluster": "8 nvlink3, 128 roce-100 x4",
        "mesh": "dp_replica 128, dp 8",
        "groups": 1,
        "layers": [(1, 32)],
        "roles": "dp dp/zero1",
        "experts": "",
        "recompute": {"none": 32},
        "micro_batches": 4,
        "schedule": "1f1b",
        "dtypes": "bf16 bf16",
        "parameters": 7.3,
        **HIDDEN,
        "kernels": "internevo",
    },
    # 32 layers on 5 stages: what is left over goes to the last.
    "internevo.csv:37": {
        "cluster": "5 nvlink3-a800",
        "mesh": "dp 1",
        "groups": 5,
        "layers": [(3, 6), (2, 7)],
        "roles": "dp",
        "experts": "",
        "recompute": {"full": 32},
        "micro_batches": 4,
        "schedule": "1f1b",
        "dtypes": "bf16 bf16",
        "parameters": 7.3,
        **HIDDEN,
        "kernels": "internevo",
    },
    "korthikanti2022.csv:4": {
        "cluster": "8 nvlink3, 8 ib-hdr200 x8",
        "mesh": "tp 8",
        "groups": 8,
        "layers": [(24, 4)],
        "roles": "tp",
        "recompute": {"full": 96},
        "micro_batches": 64,
        "schedule": "interleaved",
        "parameters": 174.6,
        **FP16,
        "overlap": "weights",
        "kernels": "megatron-fused-adding",
    },
    "llm_foundry.csv:2": FSDP
    | {
        "cluster": "8 nvlink4, 16 ib-ndr400 x8",
        "mesh": "dp 128",
        "layers": [(1, 80)],
        "roles": "dp/zero3",
        "recompute": {"full": 80},
        "kernels": "hf-unpadded-xentropy",
        "dtypes": "bf16 fp32",
        "parameters": 64.8,
    },
    # DeepSeek-V3: 61 layers on 16 stages are 15 x 4 + 1; a rack lends 64 of its 72 devices.
    "megatron_bridge.csv:2": {
        "cluster": "4 nvlink5, 16 nvlink5, 4 ib-ndr400 x64",
        "mesh": "dp 64",
        "groups": 4,
        "layers": [(15, 4), (1, 1)],
        "roles": "dp/zero1",
        "experts": "ep",
        "recompute": {"repeat": 61},
        "micro_batches": 64,
        "schedule": "interleaved",
        "dtypes": "bf16 bf16 fp8",
        "parameters": 671.0,
        **QUIET,
    },
    # Llama 405B: (126 + 2) / 64 = 2; 1536 / 8 = 192.
    "megatron_bridge.csv:21": {
        "cluster": "8 nvlink4, 128 ib-ndr400 x8",
        "mesh": "dp 8, cp 2, tp 8",
        "groups": 8,
        "layers": [(1, 1), (62, 2), (1, 1)],
        "roles": "dp/zero1 cp/zero1 tp+sp",
        "experts": "",
        "recompute": {"none": 126},
        "micro_batches": 192,
        "schedule": "interleaved",
        "dtypes": "bf16 bf16 fp8",
        "parameters": 405.9,
        **NVIDIA,
    },
    # Qwen3-235B: (94 + 2) / 96 = 1; 8 ranks of a stage, over which experts lie without a tp of their own.
    "megatron_moe_zoo.csv:5": {
        "cluster": "8 nvlink4, 32 ib-ndr400 x8",
        "mesh": "dp 4, tp 2",
        "groups": 32,
        "layers": [(1, 0), (94, 1), (1, 0)],
        "roles": "dp/zero1 tp+sp",
        "experts": "ep ep",
        "recompute": {"repeat": 94},
        "micro_batches": 512,
        "schedule": "interleaved",
        "dtypes": "bf16 bf16",
        "parameters": 235.1,
        **QUIET,
    },
    "megatron_readme_2020.csv:5": {
        "cluster": "8 nvlink2-nvswitch",
        "mesh": "tp 8",
        "groups": 1,
        "layers": [(1, 42)],
        "roles": "tp",
        "recompute": {"full": 42},
        "micro_batches": 1,
        "schedule": "1f1b",
        "parameters": 8.7,
        **FP16,
    },
    # 39B: micro-batches of 4, as in Narayanan 2021; 1536 / (32 x 4) = 12.
    "megatron_readme_jan2021.csv:6": {
        "cluster": "8 nvlink3, 64 ib-hdr200 x8",
        "mesh": "dp 32, tp 8",
        "groups": 2,
        "layers": [(2, 24)],
        "roles": "dp tp",
        "recompute": {"full": 48},
        "micro_batches": 12,
        "schedule": "1f1b",
        "parameters": 39.1,
        **FP16,
    },
    # Interleaved, and no more is said: 8 layers of a device as 2 x 4.
    "megatron_sc21.csv:18": {
        "cluster": "8 nvlink3, 48 ib-hdr200 x8",
        "mesh": "dp 4, tp 8",
        "groups": 12,
        "layers": [(24, 4)],
        "roles": "dp tp",
        "recompute": {"full": 96},
        "micro_batches": 384,
        "schedule": "interleaved",
        "parameters": 174.6,
        **FP16,
    },
    "megatron_sc21.csv:12": FP16
    | FSDP
    | {
        "cluster": "8 nvlink3, 48 ib-hdr200 x8",
        "mesh": "dp 384",
        "layers": [(1, 96)],
        "roles": "dp/zero3",
        "recompute": {"full": 96},
        "kernels": "megatron-deepspeed",
        "parameters": 174.6,
    },
    "mlperf.csv:2": {
        "cluster": "8 nvlink4, 64 ib-ndr400 x8",
        "mesh": "dp 16, tp 4",
        "groups": 8,
        "layers": [(96, 1)],
        "roles": "dp/zero1 tp+sp",
        "experts": "",
        "recompute": {"none": 96},
        "micro_batches": 128,
        "schedule": "interleaved",
        "dtypes": "bf16 bf16 fp8",
        "parameters": 174.6,
        **NVIDIA,
    },
    # LoRA on MI300X: the first 21 layers are recomputed.
    "mlperf.csv:43": {
        "cluster": "8 infinity-fabric3",
        "mesh": "dp 8",
        "groups": 1,
        "layers": [(1, 80)],
        "roles": "dp/zero1",
        "experts": "",
        "recompute": {"full": 21, "none": 59},
        "micro_batches": 1,
        "schedule": "1f1b",
        "dtypes": "bf16 bf16 fp8",
        "parameters": 69.0,
        **NVIDIA,
    },
    # 1.34B under pp 2: the head of 131,072 words costs as much as four layers.
    "nanotron.csv:2": {
        "cluster": "8 nvlink4, 64 efa-100 x32",
        "mesh": "dp 128, tp 2",
        "groups": 2,
        "layers": [(1, 11), (1, 5)],
        "roles": "dp/zero1 tp+sp",
        "experts": "",
        "recompute": {"none": 16},
        "micro_batches": 1,
        "schedule": "1f1b",
        "kernels": "nanotron",
        "overlap": "gradients tensor",
        "dtypes": "bf16 fp32",
        "parameters": 1.3,
    },
    # Llama 2 70B of a table without virtual stages: 20, as in the next.
    "nemo_docs.csv:28": {
        "cluster": "8 nvlink4, 8 ib-ndr400 x8",
        "mesh": "dp 4, tp 4",
        "groups": 4,
        "layers": [(80, 1)],
        "roles": "dp/zero1 tp+sp",
        "experts": "",
        "recompute": {"none": 80},
        "micro_batches": 32,
        "schedule": "interleaved",
        "dtypes": "bf16 bf16 fp8",
        "parameters": 69.0,
        **NVIDIA,
    },
    "pytorch_blogs.csv:20": FSDP
    | {
        "cluster": "8 nvlink3, 16 efa-100 x4",
        "mesh": "dp 128",
        "layers": [(1, 96)],
        "roles": "dp/zero3",
        "recompute": {"full": 96},
        "kernels": "mingpt",
        "dtypes": "fp16 fp16",
        "parameters": 175.2,
    },
    "torchtitan.csv:2": FSDP
    | {
        "cluster": "8 nvlink4",
        "mesh": "dp 8",
        "layers": [(1, 32)],
        "roles": "dp/zero3",
        "recompute": {"save": 32},
        "kernels": "hf-sdpa",
        "dtypes": "bf16 fp32",
        "parameters": 8.0,
    },
    # 405B interleaved: two stages a device, 8 micro-batches of 4; parameters stay gathered in a pipeline.
    "torchtitan.csv:12": {
        "cluster": "8 nvlink4, 64 roce-400 x8",
        "mesh": "dp 8, tp 8",
        "groups": 8,
        "layers": [(1, 7), (14, 8), (1, 7)],
        "roles": "dp/zero2 tp+sp",
        "experts": "",
        "recompute": {"full": 126},
        "micro_batches": 8,
        "schedule": "interleaved",
        "kernels": "torchtitan",
        "overlap": "gathers gradients tensor",
        "dtypes": "bf16 fp32 fp8",
        "parameters": 405.9,
    },
    # 1536 / (32 x 2) = 24.
    "vtrain_multi.csv:2": {
        "cluster": "8 nvlink3, 64 ib-hdr200 x4",
        "mesh": "dp 32, tp 2",
        "groups": 8,
        "layers": [(8, 6)],
        "roles": "dp tp",
        "recompute": {"full": 48},
        "micro_batches": 24,
        "schedule": "1f1b",
        "parameters": 39.1,
        **FP16,
    },
    "vtrain_single.csv:3": {
        "cluster": "8 nvlink3",
        "mesh": "dp 2, tp 4",
        "groups": 1,
        "layers": [(1, 16)],
        "roles": "dp tp",
        "recompute": {"none": 16},
        "micro_batches": 8,
        "schedule": "1f1b",
        "parameters": 0.3,
        **FP16,
    },
    # 22 + 2 layers on 24 stages.
    "zero_bubble.csv:11": {
        "cluster": "8 nvlink3",
        "mesh": "dp 1",
        "groups": 8,
        "layers": [(1, 0), (22, 1), (1, 0)],
        "roles": "dp",
        "recompute": {"none": 22},
        "micro_batches": 24,
        "schedule": "interleaved",
        "parameters": 1.6,
        **FP16,
    },
    "zero_bubble.csv:5": {
        "cluster": "8 nvlink3",
        "mesh": "dp 1",
        "groups": 8,
        "layers": [(1, 2), (6, 3), (1, 2)],
        "roles": "dp",
        "recompute": {"none": 22},
        "micro_batches": 24,
        "schedule": "zb-h1",
        "parameters": 1.6,
        **FP16,
    },
}
"""File and line → what the row comes to."""


@pytest.mark.parametrize("place", EXPECTED)
def test_a_row_becomes_the_plan_that_was_worked_out_by_hand(place: str) -> None:
    assert told(setting_of(ROWS[place]))._asdict() == EXPECTED[place]


USABLE = {
    "bigscience": 90,
    "dgxc_bench": 159,
    "fms_fsdp": 6,
    "hagemann2023": 273,
    "internevo": 42,
    "korthikanti2022": 9,
    "llm_foundry": 128,
    "megatron_bridge": 106,
    "megatron_moe_zoo": 17,
    "megatron_readme_2020": 12,
    "megatron_readme_jan2021": 10,
    "megatron_sc21": 23,
    "mlperf": 81,
    "nanotron": 13,
    "nemo_docs": 37,
    "primus_amd": 0,
    "pytorch_blogs": 10,
    "torchtitan": 26,
    "vtrain_multi": 47,
    "vtrain_single": 61,  # of every tenth
    "zero_bubble": 9,
}


def sampled() -> list[Measured]:
    single = [row for row in ROWS.values() if row.source == "vtrain_single"]
    return [row for row in ROWS.values() if row.source != "vtrain_single"] + single[::10]


def usable(row: Measured) -> bool:
    try:
        setting_of(row)
    except Unusable:
        return False
    return True


def test_no_source_loses_rows() -> None:
    found = Counter(row.source for row in sampled() if usable(row))
    assert {source: found[source] for source in USABLE} == USABLE


def test_bloom_ran_with_a_host_that_waits_where_it_would_have_hung_without() -> None:
    """From 320 devices on (chronicles-prequel.md, "dealing with JZ hanging on the large model")."""
    rows = [row for row in sampled() if row.source == "bigscience" and usable(row)]
    waits = {(row.count("n_gpus"), setting_of(row).plan.execution.blocking) for row in rows}
    assert {count for count, blocking in waits if blocking} == {320, 336, 360, 384}
    assert {count for count, blocking in waits if not blocking} == {8, 80, 160}


def changed(place: str, **fields: str) -> Measured:
    row = ROWS[place]
    return replace(row, fields=row.fields | fields)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ROWS["dgxc_bench.csv:137"], "12 virtual stages without a pipeline"),
        (ROWS["zero_bubble.csv:2"], "schedule 'ZB-2p' is none that a plan can say"),
        (ROWS["mlperf.csv:67"], "the precision is not said"),
        (ROWS["megatron_moe_zoo.csv:7"], "'Qwen3-Next-80B-A3B' is a mixture of experts of no family that is known"),
        (ROWS["bigscience.csv:25"], "the model's n_heads is not said"),
        (ROWS["megatron_bridge.csv:111"], "it repeats another row"),
        (ROWS["korthikanti2022.csv:16"], "its status is 'memory_estimate'"),
        (ROWS["primus_amd.csv:16"], "global_batch is not said"),
        (changed("vtrain_single.csv:3", micro_batch=""), "micro_batch is not said"),
        (changed("vtrain_single.csv:3", gpu="RTX 9"), "device 'RTX 9' is not in the catalogue"),
        (changed("vtrain_single.csv:3", n_gpus="9"), "9 devices do not fill nodes of 8"),
        (changed("vtrain_single.csv:3", recompute="sometimes"), "recompute 'sometimes' is none that a plan can say"),
        (changed("fms_fsdp.csv:4", measured_hfu_pct=""), "which share of the layers is recomputed is not said"),
        (changed("vtrain_single.csv:3", global_batch="33"), "a global batch of 33 does not divide over dp 2; use 32"),
    ],
)
def test_what_cannot_be_said_is_set_aside_with_the_reason(row: Measured, reason: str) -> None:
    with pytest.raises(Unusable) as caught:
        setting_of(row)
    assert str(caught.value).startswith(reason)


def test_a_sibling_corrects_what_a_table_misprints() -> None:
    row = ROWS["dgxc_bench.csv:27"]
    assert row.text("vpp") == "1"
    assert len(setting_of(row).plan.stages) == 8 * 12
    assert assumptions_of(row)[0].startswith("vpp: 12, as its own nemotron4-340b-synth.yaml")


def test_the_kernels_of_hagemann_are_those_of_their_column() -> None:
    found = {
        row.text("attention_impl"): setting_of(row).plan.execution.kernels
        for row in ROWS.values()
        if row.source == "hagemann2023"
    }
    assert found == {
        "none (torch)": "megatron-eager",
        "megatron fused softmax": "megatron-fused-eager",
        "flash1": "megatron-flash1-eager",
        "flash2": "megatron-flash-eager",
        "flash2+fused RMSNorm": "megatron-flash-norm",
    }


def test_what_columns_and_notes_say_of_kernels_scales_and_dispatch_is_taken() -> None:
    found = {
        row.text("attention_impl"): setting_of(row).plan.execution.kernels
        for row in ROWS.values()
        if row.source == "llm_foundry"
    }
    assert found == {"flash": "hf-unpadded-xentropy", "flash (triton)": "hf-sdpa-xentropy"}
    scales = [setting_of(ROWS[f"torchtitan.csv:{line}"]).recipe.precision.scaling for line in (17, 19)]
    assert scales == ["tensors", "rows"]
    sent = [setting_of(ROWS[f"megatron_moe_zoo.csv:{line}"]).plan.execution.dispatch for line in (2, 5)]
    assert sent == ["nodes", "copies"]


def test_adapters_are_on_what_each_source_adapts() -> None:
    queries = {"dgxc_bench.csv:52", "nemo_docs.csv:9"}
    for place in (*queries, "mlperf.csv:43"):
        lora = setting_of(ROWS[place]).recipe.trainable.lora
        assert lora is not None
        assert ("o_proj" in lora.targets) == (place not in queries)


def test_parameters_on_the_host_are_said() -> None:
    plan = setting_of(ROWS["pytorch_blogs.csv:20"]).plan
    assert {row.offload.parameters for stage in plan.stages for row in stage.layers} == {"cpu"}
    assert setting_of(ROWS["pytorch_blogs.csv:20"]).recipe.optimizer.name == "sgd"


def test_what_sources_say_elsewhere_is_in_the_plan() -> None:
    """Recomputed and offloaded activations, layer by layer; a device that a table has wrong."""
    zoo = setting_of(ROWS["megatron_moe_zoo.csv:8"]).plan.stages[1].layers
    assert [(row.part, str(row.recompute)) for row in zoo] == [
        (None, "{repeat: [norm]}"),
        ("mlp", "full"),
        ("experts", "full"),
    ]
    away = setting_of(ROWS["megatron_moe_zoo.csv:17"]).plan.stages[1].layers
    assert {(row.part, row.offload.activations) for row in away} == {(None, None), ("experts", "cpu")}
    assert setting_of(ROWS["megatron_moe_zoo.csv:18"]).cluster.pools[0].device == "gb300"
    bridge = setting_of(ROWS["megatron_bridge.csv:39"]).plan.stages[0].layers
    assert [row.span for row in bridge if row.offload.activations] == ["decoder.0-19"]
    assert setting_of(ROWS["megatron_bridge.csv:2"]).plan.execution.expandable_segments
    assert {row.offload.activations for row in setting_of(ROWS["pytorch_blogs.csv:21"]).plan.stages[0].layers} == {
        None,
        "cpu",
    }


def test_what_is_said_elsewhere_is_no_guess_any_more() -> None:
    said = assumptions_of(ROWS["dgxc_bench.csv:108"])
    assert "recompute: nothing is recomputed" not in said
    assert any("configure.sh" in each for each in said)


def test_gradients_wait_for_the_last_micro_batch_where_fsdp_is_in_a_pipeline() -> None:
    assert setting_of(ROWS["torchtitan.csv:12"]).plan.execution.sync == "last"
    assert setting_of(ROWS["torchtitan.csv:2"]).plan.execution.sync == "each"


def test_hfu_over_mfu_says_how_much_is_recomputed() -> None:
    all_again = changed("fms_fsdp.csv:4", measured_hfu_pct="80", measured_mfu_pct="60")
    half_again = changed("fms_fsdp.csv:4", measured_hfu_pct="70", measured_mfu_pct="60")
    assert recomputed_share(all_again) == pytest.approx(1)
    assert recomputed_share(half_again) == pytest.approx(0.5)
    assert setting_of(ROWS["fms_fsdp.csv:8"]).plan.stages[0].layers[1].recompute == "full"


def test_nanotron_cuts_where_costs_pass_equal_parts() -> None:
    # 80 layers of 0.97e9 and a head of 1.07e9 on 4 stages: 78.9e9 / 4 is passed by the 21st, 41st and 61st layer.
    row = changed("nanotron.csv:14", pp="4")
    assert row.count("n_layers") == 80
    assert cut_by_cost(row, 4) == [21, 20, 20, 19]


@pytest.mark.parametrize("place", EXPECTED)
def test_every_layer_is_on_a_stage(place: str) -> None:
    inputs = setting_of(ROWS[place])
    names = [name for stage in inputs.plan.stages for name in stage.names()]
    assert names == [layer.name for layer in inputs.model.layers]


def test_what_was_taken_is_said() -> None:
    told = assumptions_of(ROWS["megatron_bridge.csv:2"])
    assert "recompute: MLA's up-projections, of its performance scripts" in told
    assert "recompute: nothing is recomputed" in assumptions_of(ROWS["megatron_bridge.csv:3"])
    assert "experts: not cut by tp, as in all of NVIDIA's recipes of that library" in told
    assert "model: without the layer that predicts two positions ahead" in told
    trap, *others = assumptions_of(ROWS["vtrain_single.csv:3"])
    assert trap.startswith("recompute: none, since with it layers of 2,048")
    assert others == ["zero_stage_or_sharding: nothing is sharded", "gpu: 80 GB of memory"]
    assert "vpp: that of the same layout in NeMo's next table" in assumptions_of(ROWS["nemo_docs.csv:28"])


def test_virtual_stages_are_said_or_the_fewest() -> None:
    assert virtual_of(ROWS["megatron_sc21.csv:18"]) == 2
    assert virtual_of(changed("megatron_sc21.csv:18", n_layers="105", pp="35")) == 3
    assert virtual_of(changed("megatron_sc21.csv:18", schedule="1F1B")) == 1
    assert virtual_of(changed("megatron_sc21.csv:18", pp="1")) == 1
