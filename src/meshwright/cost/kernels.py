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
  activations and dropout are PyTorch's own operations instead, and in the first attention too (Hagemann 2023, section 4.1, compares such kernels).

Bytes moved are those of each kernel's inputs and outputs, once; backward moves twice as many: it reads what forward
read and the gradient, and writes a gradient. Norms, activations and rotary embeddings of transformers are several
kernels each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
    gathers_again: bool
    """True where `tp+sp` keeps a rank's own positions of a matrix's input and gathers them again in backward
    (Korthikanti 2022, section 4.2.2)."""
    stops_early: bool
    """True where recompute ends with the last tensor that backward wants, before a layer's last collective
    (torch.utils.checkpoint): with 4 layers under tp 4, 34 all-reduces instead of 38."""

    keeps_gradients: bool
    """True where gradients have buffers that stay from step to step (Megatron-LM); otherwise backward makes them."""
    scales_at_hand: bool
    """True where narrow products take the scale of the tensor at hand (torchao.float8); otherwise that of the step
    before, or of small blocks (Transformer Engine). See `cost.casts`."""
    retains: bool
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
    Norm: uses.norm_eager,
    Activation: uses.activation_eager,
    Dropout: uses.dropout_eager,
    Rotary: uses.moves(10),
}

_TORCH = {"gathers_again": False, "stops_early": True, "keeps_gradients": False, "retains": True, "scales_at_hand": True}
_MEGATRON = {"gathers_again": True, "stops_early": False, "keeps_gradients": True, "retains": False, "scales_at_hand": False}

KERNEL_SETS: dict[str, KernelSet] = {
    kernels.name: kernels
    for kernels in (
        KernelSet("hf-eager", _EAGER, flash=False, **_TORCH),
        KernelSet("hf-sdpa", _SDPA, flash=True, **_TORCH),
        KernelSet("torch-compile", _COMPILED, flash=True, **_TORCH),
        KernelSet("megatron-fused", _FUSED, flash=False, **_MEGATRON),
        KernelSet("megatron-flash", _FLASH, flash=True, **_MEGATRON),
        KernelSet("megatron-eager", _FUSED | _UNFUSED | {Attention: attention_uses.attention_eager}, flash=False, **_MEGATRON),
        KernelSet("megatron-fused-eager", _FUSED | _UNFUSED, flash=False, **_MEGATRON),
        KernelSet("megatron-flash-eager", _FLASH | _UNFUSED | {Dropout: uses.dropout_sdpa}, flash=True, **_MEGATRON),
    )
}
"""By the name that `execution.kernels` of a plan gives."""
