"""Kernel sets: what an implementation keeps for backward, and what it moves to and from memory, operator by operator.

One model differs more than two-fold between implementations, so both figures belong to kernel sets and not to models.

* `hf-eager`, `hf-sdpa`: transformers' own code, measured with torch.autograd.graph.saved_tensors_hooks on small models
  (torch 2.13, transformers 5.24, CPU; each storage once, parameters left out). A layer of GPT-2 in bf16 keeps, for each
  sample, position and hidden number (a s / h = 4), 84 bytes with eager attention, and 114 with SDPA on CPU, which under
  dropout falls back to float32 arithmetic. What code of single families does otherwise is a table (`cost/habits`).
  `tests/cost/test_kernels.py` and `test_saved.py` measure all of it again.
* `torch-compile`: each layer compiled; what the min-cut partitioner keeps, measured in the same way
  (`tests/cost/test_saved_compiled.py` has the numbers).
* `torchtitan`: the same of its Llama of 2024 and 2025, but rotary embeddings multiply complex numbers in float32, for
  which torch.compile makes no kernels ("Torchinductor does not support code generation for complex operators"), and
  keys and values are copied for every query head (torchtitan/models/llama/model.py, apply_rotary_emb, repeat_kv).
* `megatron-fused`: the inventory of Korthikanti 2022, section 4.1, for GPT, and what it comes to for others: every
  kernel keeps its input alone. `megatron-flash`: the same with FlashAttention (Dao 2022): queries, keys, values, and a
  number for each row. `megatron-eager`, `megatron-fused-eager` and `megatron-flash-eager`: norms, rotary embeddings,
  activations, dropout and the loss are PyTorch's own operations instead, and in the first attention too (Hagemann 2023,
  section 4.1, compares such kernels; their code was published as Aleph-Alpha/scaling in 2024). Logits are gathered
  there: each tensor rank has all of them. `megatron-flash1-eager`: the last of these with the first version of that
  package; `megatron-flash-norm`: with the second, and one kernel for a norm.
* `nanotron`: FlashAttention and one kernel for a norm; activations are PyTorch's; what `tp+sp` gathers for a matrix
  stays (huggingface/nanotron, parallel/tensor_parallel/functional.py, 2025, without `tp_recompute_allgather`, which its
  benchmark does not set: peaks of runs with tensor ranks come out a third too low with it).
* `internevo`: as `nanotron`, with a loss of one kernel, norms of float32 copies, without buckets of
  DistributedDataParallel, and with the optimizer of InternEvo (internlm/solver/optimizer/hybrid_zero_optim.py, 2023).
* `megatron-flash-narrow`: as `megatron-flash`, but activations keep their input in fp8 where matrices do.
* `megatron-fused-adding`: as `megatron-fused`, with Megatron-LM's gradient accumulation fusion of 2022.
* `megatron-deepspeed`: the kernels of `megatron-fused` under DeepSpeed's ZeRO and pipeline (2022).
* `mingpt`: eager attention in the compute dtype, and FSDP around each matrix (the runs of pytorch.org's blog of 2022).
* `hf-sdpa-xentropy`: as `hf-sdpa`, with Triton's flash attention and the flash attention package's cross entropy, which
  keeps the logits as they are (mosaicml/llm-foundry, 2023, `attn_impl: triton`, `loss_fn: fused_crossentropy`).
  `hf-unpadded-xentropy`: the same with `attn_impl: flash`, the package's first version (attention.py: flash-attn
  1.0.3), for which queries, keys and values are picked from padded ones.

Bytes moved are those of each kernel's inputs and outputs, once; backward moves twice as many: it reads what forward
read and the gradient, and writes a gradient. Norms, activations and rotary embeddings of transformers are several
kernels each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from meshwright.cost import attention_uses, loss_uses, scan_uses, uses
from meshwright.cost.calibration import Core
from meshwright.cost.shares import Share
from meshwright.cost.uses import Kernel, Storage, Use
from meshwright.model.operators import (
    Activation,
    Add,
    Attention,
    Contrast,
    Convolution,
    Dropout,
    Embedding,
    Experts,
    Linear,
    Loss,
    MatMul,
    Norm,
    Parameter,
    Pool,
    Rotary,
    Router,
    Scan,
)


@dataclass(frozen=True)
class KernelSet:
    """A named table of kernels."""

    name: str
    kernels: Mapping[type, Kernel]
    flash: bool
    """True where attention never writes the scores out: it computes the causal half alone, and again in backward."""
    gathers_again: bool = False
    """True where `tp+sp` keeps a rank's own positions of a matrix's input and gathers them again in backward
    (Korthikanti 2022, section 4.2.2)."""
    stops_early: bool = False
    """True where recompute ends with the last tensor that backward wants, before a layer's last collective
    (torch.utils.checkpoint): with 4 layers under tp 4, 34 all-reduces instead of 38."""
    keeps_gradients: bool = False
    """True where gradients have buffers that stay from step to step (Megatron-LM); otherwise backward makes them."""
    casts: Literal["within", "once", "twice"] = "within"
    """How inputs of narrow products are made narrow (see `cost.casts`)."""
    gathers_narrow: bool = False
    """True where tensor ranks cast before they gather what a narrow product wants."""
    adds_in_place: bool = False
    """True where the product that gives a weight's gradient adds it to the step's (Megatron-LM's gradient accumulation
    fusion), within the time of the product; otherwise a kernel of its own does."""
    joins: bool = False
    """True where matrices that read the same are one (Megatron-LM's linear_qkv, and gate and up in linear_fc1;
    nanotron's qkv_proj and gate_up_proj); otherwise each makes a gradient of what they read, and these are added up."""
    core: Core = "package"
    """Whose flash attention it is."""
    keeps_narrow: bool = False
    """True where a matrix keeps its input as it was multiplied, in fp8 or fp4 (Transformer Engine); otherwise as it
    came (torchao.float8, which casts it again)."""
    shards_masters: bool = False
    """True where what zero3 shards of a parameter is its master copy, which is cast as it is gathered (FSDP's mixed
    precision); otherwise a copy in the compute dtype is sharded beside it (DeepSpeed)."""
    has_buckets: bool = False
    """True where gradients have buffers in the compute dtype, to be reduced from, beside those they add up in (the
    buckets of DistributedDataParallel under nanotron's fp32 accumulation, optim/gradient_accumulator.py, 2025)."""
    bucket: int = 0
    """Numbers that the buffer holds which gradients are copied to and reduced from at the end of a step; the shard of
    them that the optimizer steps is copied once more (DeepSpeed, stage_1_and_2.py, `reduce_bucket_size`, 2022)."""
    step_copies: int = 0
    """Numbers, as wide as the master copy, that the optimizer makes on its way beside each that it steps, all at once
    (AdamW of torch 1.13 on one flat tensor: the root of the second moment, and that root over its correction)."""
    gathers_matrices: bool = False
    """True where zero3 gathers the parameters of one matrix at a time; otherwise those of a layer together (DeepSpeed
    fetches submodules, `stage3_max_live_parameters`; FSDP wraps layers)."""
    hands_on_copies: bool = False
    """True where what a stage hands on stays until its backward; otherwise nothing of it but the graph does
    (Megatron-LM's `deallocate_output_tensor`)."""
    sends_parts: bool = False
    """True where each of the tensor ranks sends its own part on to the next stage of what they all have whole, and the
    parts are gathered there (Narayanan 2021, section 4.1; DeepSpeed, runtime/pipe/engine.py, `is_pipe_partitioned`)."""
    gather_copies: int = 0
    """How often what zero3 has gathered is copied before it is used (FSDP2: `split_with_sizes_copy` of
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, 2024; FSDP1 uses the buffer itself)."""
    reduce_copies: int = 0
    """How often gradients are copied or divided before a state scatters them (FSDP2: `chunk_cat` of the same file;
    FSDP1: those of a flat parameter's views are put together, and divided, `_div_if_needed` of
    torch/distributed/fsdp/_runtime_utils.py, 2023)."""
    has_owners: bool = False
    """True where zero1 gives each tensor to one rank whole: gradients are summed by all, and when all have stepped
    their own the owners broadcast them one after the other (InternEvo, solver/optimizer/hybrid_zero_optim.py, where
    `reduce_rank` is none, `_partition_param_list` and `broadcast_params`)."""
    retains: bool = False
    """True where the first half of a backward in halves lets go of nothing that forward kept (see `cost.halves`)."""

    def use(self, share: Share, storage: Storage) -> Use:
        """What an operator keeps and moves; it keeps nothing where no gradient comes by."""
        kernel = self.kernels[type(share.operator)]
        use = kernel(share.operator, share, storage)
        return use if share.passes or share.learns else use._replace(kept=0.0, core=0.0, held=0.0, passing=0.0)

    def is_flash(self, share: Share, storage: Storage) -> bool:
        """Whether an attention core runs as flash attention; torch's CPU kernel has no dropout."""
        kernel = self.kernels[Attention]
        sdpa = kernel in _SDPA_CORES
        if sdpa and isinstance(share.operator, Attention):
            return storage.habits.sdpa and not attention_uses.is_math(share.operator, share, storage)
        return self.flash and not (storage.on_cpu and share.dropped)


_SDPA_CORES = (
    attention_uses.attention_sdpa,
    attention_uses.attention_compiled,
    attention_uses.attention_unpadded,
    attention_uses.attention_repeated,
)

_EAGER: dict[type, Kernel] = {
    Linear: uses.linear,
    Embedding: uses.embedding,
    Norm: uses.norm_eager,
    Attention: attention_uses.attention_eager,
    Activation: uses.activation_eager,
    Dropout: uses.dropout_eager,
    Add: uses.moves(3),
    Rotary: uses.moves(10),
    Router: uses.router_eager,
    Experts: uses.experts_eager,
    Convolution: uses.convolution,
    Scan: scan_uses.scan_eager,
    MatMul: uses.matmul,
    Pool: uses.keeps_input,
    Contrast: uses.keeps_input,
    Parameter: uses.moves(0),
    Loss: loss_uses.loss_eager,
}
_SDPA = _EAGER | {Attention: attention_uses.attention_sdpa, Dropout: uses.dropout_sdpa}
_COMPILED = _SDPA | {
    Norm: uses.norm_compiled,
    Attention: attention_uses.attention_compiled,
    Activation: uses.activation_compiled,
    Dropout: uses.dropout_flash,
    Experts: uses.experts_compiled,
    Scan: scan_uses.scan,
    Add: uses.moves(1),
    Rotary: uses.moves(2),
}
_FUSED = _EAGER | {
    Router: uses.router,
    Experts: uses.routed_experts,
    Scan: scan_uses.scan,
    Linear: uses.linear_gathered_again,
    Norm: uses.norm_fused,
    Attention: attention_uses.attention_fused,
    Activation: uses.activation_fused,
    Dropout: uses.dropout_fused,
    Rotary: uses.moves(2),
    Loss: loss_uses.loss_cut,
}
_FLASH = _FUSED | {
    Attention: attention_uses.attention_flash,
    Dropout: uses.dropout_flash,
    Loss: loss_uses.loss_joined,
}
_UNFUSED: dict[type, Kernel] = {
    Norm: uses.norm_divided,
    Activation: uses.activation_eager,
    Rotary: uses.moves(10),
    Loss: loss_uses.loss_gathered,
}
_PLAIN = _FUSED | _UNFUSED | {Attention: attention_uses.attention_eager, Dropout: uses.dropout_eager}
_PLAIN_FLASH = _FLASH | _UNFUSED | {Attention: attention_uses.attention_flash_copied, Dropout: uses.dropout_inside}
_NANOTRON = _FLASH | {Linear: uses.linear, Activation: uses.activation_eager}
_INTERNEVO = _NANOTRON | {Loss: loss_uses.loss_fused, Norm: uses.norm_widened}

_TORCHTITAN = _COMPILED | {Attention: attention_uses.attention_repeated, Rotary: uses.moves(10)}
_XENTROPY = _SDPA | {Loss: loss_uses.loss_xentropy}
_UNPADDED = _XENTROPY | {Attention: attention_uses.attention_unpadded}

_torch = partial(
    KernelSet, stops_early=True, retains=True, casts="twice", shards_masters=True, gather_copies=1, reduce_copies=1
)
_fsdp1 = partial(_torch, gather_copies=0, reduce_copies=2)
_megatron = partial(KernelSet, joins=True, gathers_again=True, keeps_gradients=True)

_transformer_engine = partial(
    _megatron, sends_parts=True, flash=True, core="maker", adds_in_place=True, keeps_narrow=True, gathers_narrow=True
)
_deepspeed = partial(
    _megatron, sends_parts=True, has_buckets=True, bucket=5 * 10**8, gathers_matrices=True, hands_on_copies=True
)

KERNEL_SETS: dict[str, KernelSet] = {
    kernels.name: kernels
    for kernels in (
        _torch("hf-eager", _EAGER, flash=False),
        _torch("hf-sdpa", _SDPA, flash=True),
        _fsdp1("hf-sdpa-xentropy", _XENTROPY, flash=True, core="early", casts="once"),
        _fsdp1("hf-unpadded-xentropy", _UNPADDED, flash=True, core="early", casts="once"),
        _fsdp1("mingpt", _EAGER | {Attention: attention_uses.attention_plain}, flash=False, gathers_matrices=True),
        _torch("torch-compile", _COMPILED, flash=True, casts="once", gathers_narrow=True),
        _torch("torchtitan", _TORCHTITAN, flash=True, casts="once", gathers_narrow=True),
        _megatron("megatron-fused", _FUSED, flash=False, sends_parts=True),
        _megatron("megatron-fused-adding", _FUSED, flash=False, sends_parts=True, adds_in_place=True),
        _transformer_engine("megatron-flash", _FLASH),
        _transformer_engine("megatron-flash-narrow", _FLASH | {Activation: uses.activation_narrow}),
        _deepspeed("megatron-deepspeed", _FUSED, flash=False),
        _megatron("megatron-eager", _PLAIN, flash=False),
        _megatron("megatron-fused-eager", _FUSED | _UNFUSED | {Dropout: uses.dropout_apart}, flash=False),
        _megatron("megatron-flash-eager", _PLAIN_FLASH, flash=True),
        _megatron("megatron-flash1-eager", _PLAIN_FLASH, flash=True, core="early"),
        _megatron("megatron-flash-norm", _PLAIN_FLASH | {Norm: uses.norm_fused}, flash=True),
        _megatron(
            "internevo", _INTERNEVO, flash=True, gathers_again=False, bucket=2**29, step_copies=2, has_owners=True
        ),
        _megatron("nanotron", _NANOTRON, flash=True, gathers_again=False, has_buckets=True),
    )
}
"""By the name that `execution.kernels` of a plan gives."""
