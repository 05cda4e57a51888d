"""Kernel sets: what an implementation keeps for backward, and what it moves to and from memory, operator by operator.

One model differs more than two-fold between implementations, so both figures belong to kernel sets and not to models.

* `hf-eager`, `hf-sdpa`: transformers' own code, measured with torch.autograd.graph.saved_tensors_hooks on small models
  (torch 2.13, transformers 5.24, CPU; each storage once, parameters left out). A layer of GPT-2 in bf16 keeps, for each
  sample, position and hidden number (a s / h = 4), 84 bytes with eager attention, and 114 with SDPA on CPU, which under
  dropout falls back to float32 arithmetic. What code of single families does otherwise is a table (`cost/habits`).
  `tests/cost/test_kernels.py` and `test_saved.py` measure all of it again.
* `torch-compile`: each layer compiled; what the min-cut partitioner keeps, measured in the same way
  (`tests/cost/test_saved_compiled.py` has the numbers).
* `megatron-fused`: the inventory of Korthikanti 2022, section 4.1, for GPT, and what it comes to for others: every
  kernel keeps its input alone. `megatron-flash`: the same with FlashAttention (Dao 2022): queries, keys, values, and a
  number for each row. `megatron-eager`, `megatron-fused-eager` and `megatron-flash-eager`: norms, rotary embeddings,
  activations, dropout and the loss are PyTorch's own operations instead, and in the first attention too (Hagemann 2023,
  section 4.1, compares such kernels; their code was published as Aleph-Alpha/scaling in 2024). Logits are gathered
  there: each tensor rank has all of them. `megatron-flash-norm`: the last of these with one kernel for a norm.
* `nanotron`: FlashAttention and one kernel for a norm; activations are PyTorch's; what `tp+sp` gathers for a matrix
  stays (huggingface/nanotron, parallel/tensor_parallel/functional.py, 2025, without `tp_recompute_allgather`, which its
  benchmark does not set: peaks of runs with tensor ranks come out a third too low with it).
* `hf-sdpa-xentropy`: as `hf-sdpa`, with the flash attention package's cross entropy (mosaicml/llm-foundry, `loss_fn:
  fused_crossentropy`), which keeps the logits as they are.

Bytes moved are those of each kernel's inputs and outputs, once; backward moves twice as many: it reads what forward
read and the gradient, and writes a gradient. Norms, activations and rotary embeddings of transformers are several
kernels each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from meshwright.cost import attention_uses, scan_uses, uses
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
    scales_at_hand: bool = False
    """True where narrow products take the scale of the tensor at hand (torchao.float8); otherwise that of the step
    before, or of small blocks (Transformer Engine). See `cost.casts`."""
    adds_in_place: bool = False
    """True where the product that gives a weight's gradient adds it to the step's (Megatron-LM's gradient accumulation
    fusion), within the time of the product; otherwise a kernel of its own does."""
    own_flash: bool = False
    """True where attention is the kernels of the device's maker (Transformer Engine calls cuDNN) rather than the flash
    attention package or what PyTorch has of it."""
    keeps_narrow: bool = False
    """True where a matrix keeps its input as it was multiplied, in fp8 or fp4 (Transformer Engine); otherwise as it
    came (torchao.float8, which casts it again)."""
    shards_masters: bool = False
    """True where what zero3 shards of a parameter is its master copy, which is cast as it is gathered (FSDP's mixed
    precision); otherwise a copy in the compute dtype is sharded beside it (DeepSpeed)."""
    has_buckets: bool = False
    """True where gradients have buffers in the compute dtype, to be reduced from, beside those they add up in (the
    buckets of DistributedDataParallel under nanotron's fp32 accumulation, optim/gradient_accumulator.py, 2025)."""
    retains: bool = False
    """True where the first half of a backward in halves lets go of nothing that forward kept (see `cost.halves`)."""

    def use(self, share: Share, storage: Storage) -> Use:
        """What an operator keeps and moves; it keeps nothing where no gradient comes by."""
        kernel = self.kernels[type(share.operator)]
        use = kernel(share.operator, share, storage)
        return use if share.passes or share.learns else use._replace(kept=0.0, core=0.0, held=0.0)

    def is_flash(self, share: Share, storage: Storage) -> bool:
        """Whether an attention core runs as flash attention; torch's CPU kernel has no dropout."""
        kernel = self.kernels[Attention]
        sdpa = kernel in (attention_uses.attention_sdpa, attention_uses.attention_compiled)
        if sdpa and isinstance(share.operator, Attention):
            return storage.habits.sdpa and not attention_uses.is_math(share.operator, share, storage)
        return self.flash and not (storage.on_cpu and share.dropped)


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
    Loss: uses.loss_eager,
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
    Loss: uses.loss_cut,
}
_FLASH = _FUSED | {
    Attention: attention_uses.attention_flash,
    Dropout: uses.dropout_flash,
    Loss: uses.loss_fused,
}
_UNFUSED: dict[type, Kernel] = {
    Norm: uses.norm_divided,
    Activation: uses.activation_eager,
    Rotary: uses.moves(10),
    Loss: uses.loss_gathered,
}
_PLAIN = _FUSED | _UNFUSED | {Attention: attention_uses.attention_eager, Dropout: uses.dropout_eager}
_PLAIN_FLASH = _FLASH | _UNFUSED | {Attention: attention_uses.attention_flash_copied, Dropout: uses.dropout_inside}
_NANOTRON = _FLASH | {Linear: uses.linear, Activation: uses.activation_eager}

_torch = partial(KernelSet, stops_early=True, retains=True, scales_at_hand=True, shards_masters=True)
_megatron = partial(KernelSet, gathers_again=True, keeps_gradients=True)

KERNEL_SETS: dict[str, KernelSet] = {
    kernels.name: kernels
    for kernels in (
        _torch("hf-eager", _EAGER, flash=False),
        _torch("hf-sdpa", _SDPA, flash=True),
        _torch("hf-sdpa-xentropy", _SDPA | {Loss: uses.loss_xentropy}, flash=True),
        _torch("torch-compile", _COMPILED, flash=True),
        _megatron("megatron-fused", _FUSED, flash=False),
        _megatron("megatron-flash", _FLASH, flash=True, own_flash=True, adds_in_place=True, keeps_narrow=True),
        _megatron("megatron-eager", _PLAIN, flash=False),
        _megatron("megatron-fused-eager", _FUSED | _UNFUSED | {Dropout: uses.dropout_apart}, flash=False),
        _megatron("megatron-flash-eager", _PLAIN_FLASH, flash=True),
        _megatron("megatron-flash-norm", _PLAIN_FLASH | {Norm: uses.norm_fused}, flash=True),
        _megatron("nanotron", _NANOTRON, flash=True, gathers_again=False, has_buckets=True),
    )
}
"""By the name that `execution.kernels` of a plan gives."""
