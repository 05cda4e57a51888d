"""What frameworks do that their published tables do not say, by tables: kernels, what overlaps, dtypes, stages.

Sources, looked up in 2026-11:
* Megatron-LM's defaults (megatron/training/arguments.py): dropout 0.1, clipping at 1.0, a table of words padded to a
  multiple of 128 times tp; gradients of fp16 runs add up in fp16, those of bf16 runs in fp32
  (--accumulate-allreduce-grads-in-fp32), where nothing else is said.
* NVIDIA/dgxc-benchmarking v25.04: `grad_sync_dtype: bf16` in gpt3_175b_hydra.yaml, grok1_314b.yaml and
  nemotron4-340b-synth.yaml, of which the first alone has `ub_tp_comm_overlap: true` and dropout 0.1;
  llama3.1/pretrain_llama31.py sets `grad_reduce_in_fp32 = False` for fp8 alone, and overlaps tp from 70B on.
* NVIDIA-NeMo/Megatron-Bridge scripts/performance: `recipe.ddp.grad_reduce_in_fp32 = False` in all recipes, and
  `expert_tensor_parallel_size=1` in those of mixtures.
* NVIDIA/NeMo recipes llama3_8b.py, llama3_70b.py: fine-tuning with `tp_comm_overlap=False`.
* DeepSpeed: `overlap_comm` is on for ZeRO-3 unless said otherwise.
* torchtitan: products that are scaled by rows are not cut to hide exchanges, whatever is asked (its issue 866, 2025).
* Composer: `mixed_precision: PURE` computes, reduces and keeps buffers in bf16, `DEFAULT` reduces in fp32.
* foundation-model-stack/fms-fsdp, policies/mixed_precision.py: bf16 reductions; torchtitan: fp32.
* vTrain: without tensor ranks the table of words is not padded. No text says so: what a head takes follows from rows
  that differ in layers and micro-batches alone, and with tp 2 it is a fourth of that without, not half (hidden 2,048,
  four samples: 35.6 and 8.8 ms), as of 50,257 columns, whose rows begin at no multiple of 16 bytes, and 50,432.
* bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md: from 320 devices on runs hang unless
  CUDA_LAUNCH_BLOCKING=1 is set, as tr11-176B-ml.slurm has it.
* Megatron-LM of mid-2022 (Korthikanti's) and Megatron-Core sum the gradient of a matrix's input beside the product for
  its weight's, which adds that to the step's (LinearWithGradAccumulationAndAsyncCommunication).
* InternLM/InternEvo, model/modeling_internlm.py, 2023: attention, rotary embedding and norm are kernels of their own,
  the gated activation PyTorch's, as in nanotron.
* huggingface/nanotron: fp32 accumulation (in the rows' notes); flash attention, fused norms and rotary embeddings.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from meshwright.plan.words import Kernels
from meshwright.recipe.spec import Float
from meshwright.validation.rows import Measured

Overlap = Literal["gathers", "gradients", "tensor", "weights"]
Cut = Literal["even", "last-more", "last-less", "by-cost"]


@dataclass(frozen=True)
class Framework:
    """What a row's framework stands for."""

    family: str
    """Frameworks that share code, and so a factor of a calibration."""
    lab: str
    """Who measured."""
    kernels: Kernels
    overlap: tuple[Overlap, ...] = ()
    """As `execution.overlap` of a plan."""
    compute: Float = "bf16"
    """Where a row does not say."""
    reduce: Float | None = "fp32"
    """The dtype in which gradients add up and travel; none: that of computing."""
    dropout: float = 0.0
    pads: bool = True
    """Whether the table of words is padded to a multiple of 128 times tp."""
    cut: Cut = "even"
    """How layers that do not divide are cut into stages (see `validation.stages`)."""
    blocking: bool = False
    """Whether the host waits for each kernel (CUDA_LAUNCH_BLOCKING=1)."""
    expandable: bool = False
    """Whether the allocator's segments grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)."""
    etp: int | None = 1
    """Tensor-parallel ways inside experts where a row does not say; none: as many as outside."""


_MEGATRON_2022 = Framework("megatron-2022", "", "megatron-fused", compute="fp16", reduce=None, dropout=0.1)
_NVIDIA = Framework(
    "megatron-core", "nvidia", "megatron-flash", overlap=("gathers", "gradients", "tensor"), reduce="bf16"
)
_FSDP = Framework("pytorch-fsdp", "", "hf-sdpa", overlap=("gathers", "gradients"), pads=False)
_MAXTEXT = Framework("maxtext", "nvidia", "torch-compile", ("gathers", "gradients"), reduce="bf16", pads=False)

_BY_SOURCE: dict[str, Framework] = {
    "vtrain_single": replace(_MEGATRON_2022, lab="kaist"),
    "vtrain_multi": replace(_MEGATRON_2022, lab="kaist"),
    "bigscience": replace(_MEGATRON_2022, lab="bigscience", kernels="megatron-deepspeed", dropout=0.0),
    "megatron_readme_2020": replace(_MEGATRON_2022, lab="nvidia"),
    "megatron_readme_jan2021": replace(_MEGATRON_2022, lab="nvidia"),
    "megatron_sc21": replace(_MEGATRON_2022, lab="nvidia"),
    "korthikanti2022": replace(_MEGATRON_2022, lab="nvidia", kernels="megatron-fused-adding", overlap=("weights",)),
    "zero_bubble": replace(_MEGATRON_2022, lab="sea"),
    "hagemann2023": Framework("megatron-2022", "aleph-alpha", "megatron-flash-eager", reduce="bf16"),
    "dgxc_bench": replace(_NVIDIA, etp=None),
    "nemo_docs": _NVIDIA,
    "megatron_bridge": _NVIDIA,
    "megatron_moe_zoo": replace(_NVIDIA, expandable=True),
    "mlperf": _NVIDIA,
    "primus_amd": replace(_NVIDIA, lab="amd"),
    "llm_foundry": replace(_FSDP, lab="mosaicml", kernels="hf-sdpa-xentropy"),
    "pytorch_blogs": replace(_FSDP, lab="meta", reduce="bf16"),
    "fms_fsdp": replace(_FSDP, lab="ibm", reduce="bf16"),
    "torchtitan": replace(_FSDP, lab="meta"),
    "internevo": Framework(
        "internevo", "shanghai", "internevo", ("gathers", "gradients"), reduce="bf16", pads=False, cut="last-more"
    ),
    "nanotron": Framework("nanotron", "huggingface", "nanotron", ("gradients", "tensor"), pads=False, cut="by-cost"),
}

_DEEPSPEED: dict[str, object] = {"kernels": "megatron-deepspeed"}
_WHOLE_EXCHANGES: dict[str, object] = {"overlap": ("gathers", "gradients", "weights")}
"""Megatron-Core where exchanges are not cut to hide behind products (`tp_comm_overlap` off)."""

_REFINED: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("dgxc_bench", "precision|model_name", r"^bf16 Llama-3", {"reduce": "fp32"}),
    ("dgxc_bench", "model_name", r"Nemotron|Grok|Maverick|DeepSeek", _WHOLE_EXCHANGES),
    ("dgxc_bench|nemo_docs", "model_name", r"^GPT3", {"dropout": 0.1}),
    ("megatron_bridge|megatron_moe_zoo", "n_experts", r".", _WHOLE_EXCHANGES),
    ("megatron_bridge|dgxc_bench", "model_name", r"DeepSeek|Kimi", {"cut": "last-less"}),
    ("megatron_bridge", "model_name|gpu", r"DeepSeekV3.* (H100|GB200)|LLAMA3.1_405B GB200", {"expandable": True}),
    ("mlperf", "model_name", r"405B", {"expandable": True}),
    ("mlperf", "precision", r"activations too", {"kernels": "megatron-flash-narrow"}),
    ("dgxc_bench|nemo_docs|megatron_bridge", "task", r"SFT|LoRA", _WHOLE_EXCHANGES),
    ("llm_foundry", "notes", r"MP mode PURE", {"reduce": "bf16"}),
    ("llm_foundry", "attention_impl", r"^flash$", {"kernels": "hf-unpadded-xentropy"}),
    ("bigscience", "precision", r"fp32 grad", {"reduce": "fp32"}),
    ("bigscience", "n_gpus|gpu", r"^3[2-9]\d A100", {"blocking": True}),
    ("vtrain_single|vtrain_multi", "tp", r"^1$", {"pads": False}),
    ("megatron_sc21", "zero_stage_or_sharding", r"zero3", {"overlap": ("gathers", "gradients")} | _DEEPSPEED),
    ("fms_fsdp", "notes|framework", r"(?<!no )compile", {"kernels": "torch-compile"}),
    ("torchtitan", "notes|framework", r"(?<!no )compile", {"kernels": "torchtitan"}),
    ("torchtitan", "notes", r"[Aa]sync ?TP", {"overlap": ("gathers", "gradients", "tensor")}),
    ("torchtitan", "precision", r"rowwise", {"overlap": ("gathers", "gradients")}),
    ("pytorch_blogs", "attention_impl", r"^none$", {"kernels": "mingpt", "reduce": "fp16"}),
    ("hagemann2023", "attention_impl", r"^none", {"kernels": "megatron-eager"}),
    ("hagemann2023", "attention_impl", r"^flash1", {"kernels": "megatron-flash1-eager"}),
    ("hagemann2023", "attention_impl", r"fused softmax", {"kernels": "megatron-fused-eager"}),
    ("hagemann2023", "attention_impl", r"fused RMSNorm", {"kernels": "megatron-flash-norm"}),
)
"""Sources, columns, what one of them contains → what is different then; later lines win."""


def framework_of(row: Measured) -> Framework:
    """By the source, then by what the row itself says."""
    found = _BY_SOURCE.get(row.source) or _guess(row)
    if "MaxText" in row.text("framework"):
        return _MAXTEXT
    for sources, columns, pattern, changes in _REFINED:
        said = " ".join(row.text(column) for column in columns.split("|"))
        if row.source in sources.split("|") and re.search(pattern, said):
            found = replace(found, **changes)  # type: ignore[arg-type]
    return found


_GUESSES = (
    (r"fsdp|torchtitan|accelerate|composer", _FSDP),
    (r"nemo|megatron-core|megatron-bridge|transformer engine", _NVIDIA),
    (r"megatron|deepspeed", _MEGATRON_2022),
)


def _guess(row: Measured) -> Framework:
    """Of a source that is not in the table, by the words of its framework and its attention."""
    words, attention = row.text("framework").lower(), row.text("attention_impl").lower()
    found = next((known for pattern, known in _GUESSES if re.search(pattern, words)), replace(_FSDP, family="unknown"))
    if found.kernels.startswith("megatron") and attention:
        flash = "flash" in attention and "no flash" not in attention
        found = replace(found, kernels="megatron-flash" if flash else "megatron-fused")
    return replace(found, lab=row.source)
