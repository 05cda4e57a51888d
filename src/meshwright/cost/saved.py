"""What one layer of a model keeps from forward to backward, by kernel set, before any plan cuts it."""

from collections.abc import Mapping

from meshwright.cluster.spec import Dtype
from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.shares import Extent, Learning, Ways, layer_shares
from meshwright.cost.uses import storage_of
from meshwright.model.spec import LayerStack, ModelSpec
from meshwright.recipe.spec import BYTES


def saved_bytes(
    model: ModelSpec,
    stack: LayerStack,
    kernels: str,
    lengths: Mapping[str, int],
    *,
    dtype: Dtype = "bf16",
    backend: str = "nccl",
    samples: float = 1.0,
) -> float:
    """Bytes that one layer keeps for backward, for so many samples with these lengths of streams, without recompute.

    >>> from meshwright.model.resolve import from_catalog
    >>> gpt2 = from_catalog("gpt2")
    >>> saved_bytes(gpt2, gpt2.stacks[1], "megatron-fused", {"tokens": 1024}) / (1024 * 768)
    114.0

    The source of that figure: 34 + 5 a s / h with 12 heads (Korthikanti 2022, equation 1).
    """
    parts = [(part, Ways()) for part in stack.parts]
    shares = layer_shares(parts, Extent(samples, lengths, stack.stream), Learning())
    storage = storage_of(BYTES[dtype], backend, model.family)
    return sum(KERNEL_SETS[kernels].use(share, storage).kept for part in shares for share in part)
