"""What single kernels keep for backward, and what they read and write: the formulas that kernel sets are made of."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from meshwright.cost.shares import Share, elements
from meshwright.model.operators import (
    Activation,
    Attention,
    Convolution,
    Dropout,
    Embedding,
    Experts,
    Linear,
    Loss,
    MatMul,
    Norm,
    Router,
    Scan,
)


class Storage(NamedTuple):
    """How many bytes the numbers take that kernels keep and move."""

    element: float = 2
    """An activation, in the compute dtype."""
    mask: float = 1
    """One dropout decision of an eager kernel; torch's CPU kernel keeps it as a number of the compute dtype."""
    statistic: float = 4
    """A mean or deviation of a layer norm; torch's CPU kernel keeps it in the compute dtype."""
    on_cpu: bool = False
    wide_softmax: bool = True
    """True where transformers' eager attention takes the softmax in float32, as most of its models do."""

    @property
    def wide(self) -> float:
        """A number in float32 or wider."""
        return max(4, self.element)


NARROW_SOFTMAX = frozenset({"falcon", "gpt2"})
"""Families whose eager attention in transformers takes the softmax in the compute dtype."""


def storage_of(element: float, backend: str, family: str) -> Storage:
    """The storage of a compute dtype of `element` bytes on a backend, for a family of models."""
    on_cpu = backend == "gloo"
    local = element if on_cpu else 1
    return Storage(element, local, element if on_cpu else 4, on_cpu, family not in NARROW_SOFTMAX)


class Use(NamedTuple):
    """What one operator costs in bytes."""

    kept: float
    """From forward to backward."""
    moved: float
    """To and from memory in forward."""
    core: float = 0.0
    """Of what is kept: what selective recompute computes again (scores, softmax and dropout of attention)."""
    passing: float = 0.0
    """Held besides while backward runs."""


Kernel: TypeAlias = Callable[[Any, Share, Storage], Use]


def linear(op: Linear, share: Share, storage: Storage) -> Use:
    """The input is kept, once for neighbours that read the same, where the weight learns."""
    read, weight = share.work.positions * op.inputs, op.inputs * op.outputs
    kept = storage.element * read if share.learns and share.fresh else 0.0
    return Use(kept, storage.element * (read + weight + elements(op, share.work)))


def linear_gathered_again(op: Linear, share: Share, storage: Storage) -> Use:
    use = linear(op, share, storage)
    return use._replace(kept=use.kept / share.scattered)


def embedding(op: Embedding, share: Share, storage: Storage) -> Use:
    """The indices are kept, 8 bytes each."""
    return Use(8 * share.work.positions, 2 * storage.element * elements(op, share.work))


def norm_eager(op: Norm, share: Share, storage: Storage) -> Use:
    """RMS norms cast to float32, square, average, scale, cast back and weigh: six kernels. Layer norms are one."""
    numbers, element = elements(op, share.work), storage.element
    if op.kind != "rms":
        return norm_compiled(op, share, storage)
    casts = 0 if element == 4 else 2 * (element + 4)
    return Use(numbers * (4 + element) + 4 * numbers / op.width, numbers * (20 + 2 * element + casts))


def norm_compiled(op: Norm, share: Share, storage: Storage) -> Use:
    """The input, and a deviation (`rms`) or a mean and a deviation for each position."""
    numbers = elements(op, share.work)
    statistics = {"rms": 4.0, "layer": 2 * storage.statistic}.get(op.kind, 0.0) * numbers / op.width
    return Use(storage.element * numbers + statistics, 2 * storage.element * numbers)


def norm_fused(op: Norm, share: Share, storage: Storage) -> Use:
    """The input; the paper counts no statistics."""
    numbers = elements(op, share.work)
    return Use(storage.element * numbers, 2 * storage.element * numbers)


class _Core(NamedTuple):
    """Numbers that an attention core works on."""

    queries: float
    keys: float
    values: float
    outputs: float
    scores: float
    """One for each head, position and position that it looks at."""
    rows: float
    """One for each head and position."""

    @property
    def streamed(self) -> float:
        """What is read and written whatever the kernel."""
        return self.queries + self.keys + self.values + self.outputs


def _core(op: Attention, share: Share, *, copied: bool) -> _Core:
    """`copied`: keys and values are first copied for every query head, as kernels without grouped heads want them."""
    work, value = share.work, op.value_dim or op.head_dim
    held = work.samples * share.keys * (op.heads if copied else op.kv_heads)
    rows = work.positions * op.heads
    return _Core(rows * op.head_dim, held * op.head_dim, held * value, rows * value, rows * work.context, rows)


def attention_eager(op: Attention, share: Share, storage: Storage) -> Use:
    """Scores: product, scale, mask, softmax, product: each a kernel. The weights that meet the values are kept too,
    where they are not the softmax's own output.
    """
    core, element = _core(op, share, copied=True), storage.element
    wide = storage.wide_softmax and element != 4
    softmax = 4 if storage.wide_softmax else element
    weights = element if wide or share.dropped else 0
    kept = core.scores * (softmax + weights)
    passes = 6 * element + (2 * (element + 4) if wide else 2 * element)
    return Use(
        element * (core.queries + core.keys + core.values) + kept, core.scores * passes + element * core.streamed, kept
    )


def attention_flash(op: Attention, share: Share, storage: Storage) -> Use:
    """Queries, keys, values and one number a row; the output is kept as the next matrix's input."""
    core = _core(op, share, copied=False)
    kept = storage.wide * core.rows
    inputs = storage.element * (core.queries + core.keys + core.values)
    return Use(inputs + kept, storage.element * core.streamed, kept)


def attention_sdpa(op: Attention, share: Share, storage: Storage) -> Use:
    """Flash attention; on CPU, under dropout, plain float32 arithmetic that keeps softmax, mask and dropped weights."""
    if not (storage.on_cpu and share.dropped):
        return attention_flash(op, share, storage)
    core = _core(op, share, copied=True)
    kept = 3 * storage.wide * core.scores
    inputs = storage.wide * (core.queries + core.keys + core.values)
    return Use(inputs + kept, 10 * storage.wide * core.scores + storage.wide * core.streamed, kept)


def attention_compiled(op: Attention, share: Share, storage: Storage) -> Use:
    """As SDPA; under dropout on CPU the compiled arithmetic keeps two tensors of scores and a mask of bytes, and for
    each row what the softmax normalised by.
    """
    if not (storage.on_cpu and share.dropped):
        return attention_flash(op, share, storage)
    core = _core(op, share, copied=True)
    kept = core.scores * (2 * storage.wide + 1) + core.rows * (2 * storage.wide + 1)
    inputs = storage.wide * (core.queries + core.keys + core.values)
    return Use(inputs + kept, 10 * storage.wide * core.scores + storage.wide * core.streamed, kept)


def attention_fused(op: Attention, share: Share, storage: Storage) -> Use:
    """A fused kernel scales, masks and takes the softmax, and keeps its output: 2 a s^2 b in bf16."""
    core, element = _core(op, share, copied=True), storage.element
    kept = element * core.scores
    inputs = element * (core.queries + core.keys + core.values)
    return Use(inputs + kept, element * (4 * core.scores + core.streamed), kept)


def dropout_eager(op: Dropout, share: Share, storage: Storage) -> Use:
    numbers = elements(op, share.work)
    kept = storage.mask * numbers if op.probability else 0.0
    return Use(kept, (2 * storage.element + storage.mask) * numbers, kept if op.of == "attention" else 0.0)


def dropout_fused(op: Dropout, share: Share, storage: Storage) -> Use:
    """The mask, a byte each, and of attention weights the output too, which meets the values: 3 a s^2 b in bf16."""
    numbers = elements(op, share.work) if op.probability else 0.0
    of_attention = op.of == "attention"
    kept = numbers * (1 + (storage.element if of_attention else 0))
    return Use(kept, numbers * (1 + storage.element * (2 if of_attention else 0)), kept if of_attention else 0.0)


def dropout_flash(op: Dropout, share: Share, storage: Storage) -> Use:
    """Inside the attention kernel; elsewhere a mask of a byte each."""
    return Use(0.0, 0.0) if op.of == "attention" else dropout_fused(op, share, storage)


def dropout_sdpa(op: Dropout, share: Share, storage: Storage) -> Use:
    return Use(0.0, 0.0) if op.of == "attention" else dropout_eager(op, share, storage)


_EAGER_ACTIVATIONS = {
    "gelu_new": (4, 18),
    "quick_gelu": (2, 7),
    "relu": (0, 2),
    "bloom_gelu": (1, 18),
    "scale": (0, 2),
    "softcap": (1, 6),
}
"""Function: (tensors kept, tensors read or written). `gelu_new` is eight kernels; `relu` keeps its output, which the
next matrix keeps anyhow, unless dropout comes between. Others are one kernel that keeps its input."""


def activation_eager(op: Activation, share: Share, storage: Storage) -> Use:
    """A gated one keeps both factors of its product besides."""
    kept, moved = _EAGER_ACTIVATIONS.get(op.function, (1, 2))
    kept += op.function == "relu" and share.dropped
    numbers = storage.element * elements(op, share.work)
    return Use(numbers * (kept + 2 * op.gated), numbers * (moved + 3 * op.gated))


def activation_fused(op: Activation, share: Share, storage: Storage) -> Use:
    """Its input alone: one tensor, or two where it is gated; none where it only scales."""
    numbers = storage.element * elements(op, share.work)
    return Use(numbers * (0 if op.function == "scale" else 1 + op.gated), numbers * (2 + op.gated))


def moves(tensors: float) -> Kernel:
    """A kernel that keeps nothing and reads and writes so many tensors of its output's size."""
    return lambda op, share, storage: Use(0.0, tensors * storage.element * elements(op, share.work))


def keeps_input(op: Any, share: Share, storage: Storage) -> Use:
    """Pooling, and what else keeps a tensor of its output's size."""
    numbers = storage.element * elements(op, share.work)
    return Use(numbers, 2 * numbers)


def router(op: Router, share: Share, storage: Storage) -> Use:
    """The input and the probabilities, in float32."""
    read, wide = share.work.positions * op.hidden, 4 * elements(op, share.work)
    return Use(storage.element * read + wide, storage.element * (read + op.hidden * op.experts) + 3 * wide)


def routed_experts(op: Experts, share: Share, storage: Storage) -> Use:
    """Positions as sent to the experts, what the first matrices put out, the product, and outputs to be weighed."""
    routed = share.work.positions * op.top_k
    width = 2 * op.hidden + (3 if op.gated else 2) * op.ffn
    shuffled = 5 * op.hidden
    return Use(storage.element * routed * width, storage.element * (routed * (width + shuffled) + op.parameters()))


def convolution(op: Convolution, share: Share, storage: Storage) -> Use:
    """The input."""
    read = share.work.samples * op.read_positions(share.work) * op.inputs
    moved = read + elements(op, share.work) + op.parameters()
    return Use(storage.element * read if share.learns else 0.0, storage.element * moved)


def matmul(op: MatMul, share: Share, storage: Storage) -> Use:
    """Both operands, the second taken to be one for each sample."""
    read = share.work.positions * op.inner + share.work.samples * op.inner * op.outputs
    return Use(storage.element * read, storage.element * (read + elements(op, share.work)))


def scan(op: Scan, share: Share, storage: Storage) -> Use:
    """Input and output for each channel, steps, and the two projections of the state; steps are one for each head, if
    there are heads.
    """
    channels, steps = (op.width * op.heads, op.heads) if op.heads else (op.width, op.width)
    numbers = storage.element * share.work.positions * (2 * channels + steps + 2 * op.state)
    return Use(numbers, numbers)


def loss_eager(op: Loss, share: Share, storage: Storage) -> Use:
    """The logits, and their log-probabilities in float32 or wider; read, widened, normalised. Backward makes a gradient
    of the log-probabilities and one of the logits.
    """
    numbers, wide = elements(op, share.work) * op.classes, storage.wide
    return Use(numbers * (storage.element + wide), numbers * (storage.element + 3 * wide), passing=2 * numbers * wide)


def loss_fused(op: Loss, share: Share, storage: Storage) -> Use:
    """The logits in float32: 4 s b v (Korthikanti 2022, section 4.3)."""
    numbers = elements(op, share.work) * op.classes
    return Use(numbers * storage.wide, numbers * (storage.element + storage.wide))
