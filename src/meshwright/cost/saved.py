"""What layers of a model keep from forward to backward, by kernel set, before any plan cuts them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.shares import Extent, Learning, Share, layer_shares
from meshwright.cost.uses import Storage, Use, storage_of
from meshwright.cost.ways import Ways
from meshwright.model.operators import Attention, Linear, Rotary
from meshwright.model.spec import Layer, LayerStack, ModelSpec
from meshwright.recipe.spec import BYTES

if TYPE_CHECKING:
    from meshwright.cluster.spec import Dtype


def saved_bytes(
    model: ModelSpec,
    stack: LayerStack,
    kernels: str,
    lengths: Mapping[str, int],
    *,
    dtype: "Dtype" = "bf16",
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
    storage = storage_of(BYTES[dtype], backend, model.family)
    return sum(use.kept for use in stack_uses(stack, kernels, Extent(samples, lengths, stack.stream), storage))


def stack_uses(
    stack: LayerStack, kernels: str, extent: Extent, storage: Storage, learning: Learning | None = None
) -> list[Use]:
    """What each operator of one layer keeps and moves."""
    return [KERNEL_SETS[kernels].use(share, storage) for share in _shares(stack, extent, learning or Learning())]


def _shares(stack: LayerStack, extent: Extent, learning: Learning) -> list[Share]:
    parts = [(part, Ways()) for part in stack.parts]
    return [share for part in layer_shares(parts, extent, learning) for share in part]


def input_bytes(model: ModelSpec, layer: Layer, extent: Extent, storage: Storage) -> float:
    """What a layer takes in, and full recompute keeps of it (Korthikanti 2022, section 5: 2 s b h)."""
    reads = (model.by_name[read].stack.output for read in layer.reads if read not in layer.stack.side)
    element = storage.wide if storage.habits.wide_stream and layer.index else storage.element
    return element * extent.samples * extent.lengths[layer.stack.stream] * sum(reads)


def looked_at(stacks: Iterable[LayerStack]) -> dict[str, int]:
    """The streams of other layers that attention looks at (an encoder's output), and the width of what it reads of
    them. All layers keep that together, once.
    """
    found: dict[str, int] = {}
    for stack in stacks:
        streams = {operator.cross for operator in stack.operators if isinstance(operator, Attention)}
        for operator in stack.operators:
            if isinstance(operator, Linear) and operator.stream is not None and operator.stream in streams:
                found[operator.stream] = operator.inputs
    return found


def shared_bytes(model: ModelSpec, kernels: str, lengths: Mapping[str, int], samples: float, storage: Storage) -> float:
    """What layers keep together, each thing once: an encoder's output, tables of rotary positions, and masks that a
    family's code hands to all layers.
    """
    element = storage.element
    looked = sum(element * samples * lengths[stream] * width for stream, width in looked_at(model.stacks).items())
    turned = {(stack.stream, dim) for stack in model.stacks for dim in _turned_dims(stack)}
    tables = sum(2 * element * lengths[stream] * dim for stream, dim in turned) * storage.habits.rotations
    masks = _shared_masks(model, kernels, lengths, samples, storage) if kernels.startswith("hf-") else 0.0
    return looked + tables + masks


def _turned_dims(stack: LayerStack) -> list[float]:
    """Numbers of a head that are rotated; where values are apart, keys have one rotated piece for all heads (MLA)."""
    core = next((operator for operator in stack.operators if isinstance(operator, Attention)), None)
    widths = [operator.width for operator in stack.operators if isinstance(operator, Rotary)]
    if core is None:
        return []
    keys = 1 if core.value_dim else core.kv_heads
    return [width / (core.heads + keys) for width in widths]


def _shared_masks(
    model: ModelSpec, kernels: str, lengths: Mapping[str, int], samples: float, storage: Storage
) -> float:
    """A mask of true and false that fills scores in, a byte each; biases by distance where SDPA gets them with it."""
    found = 0.0
    cores = {(stack.stream, core) for stack in model.stacks for core in stack.operators if isinstance(core, Attention)}
    for stream, core in cores:
        pairs = samples * lengths[stream] ** 2
        if storage.habits.fills_mask:
            found += pairs
        if core.alibi and kernels == "hf-sdpa" and storage.habits.sdpa:
            found += storage.element * pairs * core.heads
    return found
