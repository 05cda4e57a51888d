"""What single kernels keep for backward, and what they read and write: the formulas that kernel sets are made of.

Kept and moved bytes of two samples of five positions in bf16, ten positions in all. A matrix from 8 to 3 keeps its
input, and moves input, weight and output, 2 (80 + 24 + 30); gathered again over four ranks it keeps a quarter. An
embedding keeps ten indices.

>>> from meshwright.model.work import Work
>>> def used(kernel, operator, **facts):
...     share = Share(operator, Work(samples=2, length=5, context=5), learns=True, passes=True, **facts)
...     return tuple(kernel(operator, share, Storage())[:2])
>>> used(linear, Linear(inputs=8, outputs=3)), used(linear_gathered_again, Linear(inputs=8, outputs=3), scattered=4)
((160, 268), (40.0, 268))
>>> used(embedding, Embedding(rows=9, width=4, split="vocabulary"))
(80, 160)

Norms of 40 numbers. Eager RMS keeps a float32 copy, the normalised numbers and ten deviations, 40 (4 + 2) + 4 x 10; one
kernel the input, with ten means and deviations; a fused one the input alone (Korthikanti 2022, section 4.1: 2 s b h).

>>> rms, layer = Norm(kind="rms", width=4), Norm(kind="layer", width=4)
>>> used(norm_eager, rms), used(norm_compiled, layer), used(norm_fused, layer)
((280.0, 1440), (160.0, 160), (80, 160))

Dropout keeps a byte a number (same section: s b h); fused, on the 200 weights of four heads, the output too: 3 a s^2 b.

>>> hidden, weights = Dropout(probability=0.1, width=4), Dropout(probability=0.1, width=4, of="attention")
>>> used(dropout_eager, hidden), used(dropout_fused, hidden), used(dropout_fused, weights)
((40, 200), (40, 40), (600, 1000))

`gelu_new` keeps four tensors of 80 bytes in its eight kernels; a gated silu its input and both factors of the product;
fused (Shazeer 2020, section 2, for the gates) gate and up alone. An addition keeps nothing, pooling its output's size.

>>> gated = Activation(function="silu", width=4, gated=True)
>>> used(activation_eager, Activation(function="gelu_new", width=4)), used(activation_eager, gated)
((320, 1440), (240, 400))
>>> used(activation_fused, gated), used(moves(2), Activation(width=4)), used(keeps_input, Activation(width=4))
((160, 240), (0.0, 160), (80, 160))

A router of 8 experts from 4 numbers keeps its input and 80 probabilities in float32; eager, for each position 8
scores, twice an index and a weight, and their sum, 10 (32 + 24 + 4). Its two experts of 4 x 6 see 20 positions: as
sent, gate, up, function and product, put out, 2 x 20 (4 + 4 x 6 + 4), with 20 (8 x 3 + 2) of lists and 4 x 8 ends;
fused without the function and what is put out, 2 x 20 (4 + 3 x 6).

>>> chosen = Router(hidden=4, experts=8, top_k=2)
>>> used(router, chosen), used(router_eager, chosen)
((400, 1104), (680, 1104))
>>> experts = Experts(count=8, top_k=2, hidden=4, ffn=6, gated=True)
>>> used(experts_eager, experts), used(routed_experts, experts)
((1832, 3232), (880, 2992))

A convolution keeps its 10 x 3 numbers, a product both operands, 10 x 4 and 2 x 4 x 3.

>>> used(convolution, Convolution(inputs=3, outputs=4, kernel=(3,))), used(matmul, MatMul(inner=4, outputs=3))
((60, 212), (128, 188))
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from meshwright.cost.habits import DIVIDED_AS_IT_IS, HABITS, Habits
from meshwright.cost.shares import Share, elements
from meshwright.model.operators import (
    Activation,
    Convolution,
    Dropout,
    Embedding,
    Experts,
    Linear,
    MatMul,
    Norm,
    Router,
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
    habits: Habits = Habits()
    """What transformers' code of the model's family does."""
    narrow: float | None = None
    """A number of a matrix's input, where that is kept as it was multiplied: in fp8 or fp4."""

    @property
    def read(self) -> float:
        """A number that a matrix keeps of its input."""
        return self.narrow or self.element

    @property
    def wide(self) -> float:
        """A number in float32 or wider."""
        return max(4, self.element)


def storage_of(element: float, backend: str, family: str) -> Storage:
    """The storage of a compute dtype of `element` bytes on a backend, for a family of models."""
    on_cpu = backend == "gloo"
    local = element if on_cpu else 1
    return Storage(element, local, element if on_cpu else 4, on_cpu, HABITS.get(family, Habits()))


class Use(NamedTuple):
    """What one operator costs in bytes."""

    kept: float
    """From forward to backward."""
    moved: float
    """To and from memory in forward."""
    core: float = 0.0
    """Of what is kept: what selective recompute computes again (scores, softmax and dropout of attention)."""
    held: float = 0.0
    """Of what is kept: what no backward wants, but whoever called the model holds (its output, the logits)."""
    passing: float = 0.0
    """Held besides while backward runs."""


Kernel: TypeAlias = Callable[[Any, Share, Storage], Use]


def linear(op: Linear, share: Share, storage: Storage) -> Use:
    """The input is kept, once for neighbours that read the same, where the weight learns; a slice keeps all of what it
    is cut from.
    """
    read, weight = share.work.positions * op.inputs, op.inputs * op.outputs
    whole = share.work.samples * share.slice_of * op.inputs or read
    if storage.on_cpu and storage.habits.chunks and share.made:
        whole = share.work.positions * share.made
    kept = storage.read * whole if share.learns and share.fresh else 0.0
    return Use(kept, storage.element * (read + weight + elements(op, share.work)))


def linear_gathered_again(op: Linear, share: Share, storage: Storage) -> Use:
    use = linear(op, share, storage)
    return use._replace(kept=use.kept / share.scattered)


def embedding(op: Embedding, share: Share, storage: Storage) -> Use:
    """The indices, 8 bytes each: of every token; of positions for one sample, or of pairs of positions."""
    work = share.work
    indices = work.positions if op.split else work.length
    if not op.split and storage.habits.tables == "pairs":
        indices *= work.context
    return Use(8 * indices, 2 * storage.element * elements(op, work))


def norm_eager(op: Norm, share: Share, storage: Storage) -> Use:
    """RMS norms cast to float32, square, average, scale, cast back and weigh: six kernels. Layer norms are one."""
    if op.kind != "rms":
        return norm_compiled(op, share, storage)
    numbers, element, rms = elements(op, share.work), storage.element, storage.habits.rms
    cast = 4 * rms.wide + element * (rms.narrow + rms.keeps_input)
    tensors = 4 * (1 + share.fresh) if element == 4 else cast  # in float32 the cast gives the input itself
    gain = 4.0 * op.width if rms.keeps_gain else 0.0
    casts = 0 if element == 4 else 2 * (element + 4)
    return Use(numbers * tensors + 4 * numbers / op.width + gain, numbers * (20 + 2 * element + casts))


def norm_divided(op: Norm, share: Share, storage: Storage) -> Use:
    """Eager RMS norms as transformers' Llama had them in 2023 (4.28, modeling_llama.py): the mean of squares in
    float32, but the input itself divided, which is kept too. Of each number forward's kernels read or write 6 that are
    wide and 5 in the compute dtype. Backward's, of the gain 6 in that dtype, of both casts 2 of either kind, of the
    product with the root 6 and 2, of mean and square 8 wide ones, and 3 where the gradients of the input meet: in bf16
    124 bytes in all, of which a third counts as forward's (see `loss_uses.loss_cut`). Layer norms are one kernel.
    """
    if op.kind != "rms":
        return norm_compiled(op, share, storage)
    use = norm_eager(op, share, storage._replace(habits=storage.habits._replace(rms=DIVIDED_AS_IT_IS)))
    element, wide = storage.element, storage.wide
    moved = 22 * wide + 18 * element if element < wide else 30 * wide
    return use._replace(moved=elements(op, share.work) * moved / 3)


def norm_compiled(op: Norm, share: Share, storage: Storage) -> Use:
    """The input, and a deviation (`rms`) or a mean and a deviation for each position."""
    numbers = elements(op, share.work)
    statistics = {"rms": 4.0, "layer": 2 * storage.statistic}.get(op.kind, 0.0) * numbers / op.width
    whole = share.work.samples * share.slice_of * op.width or numbers
    return Use(storage.element * whole * share.fresh + statistics, 2 * storage.element * numbers)


def norm_widened(op: Norm, share: Share, storage: Storage) -> Use:
    """As fused, of a copy in float32 that it is handed: read and written, and read again (InternEvo,
    model/modeling_internlm.py, `norm1(_residual.float())`, within a checkpoint that makes both once more in backward).
    """
    numbers = elements(op, share.work)
    return norm_fused(op, share, storage)._replace(moved=2 * (storage.element + storage.wide) * numbers)


def norm_fused(op: Norm, share: Share, storage: Storage) -> Use:
    """The input; the paper counts no statistics."""
    numbers = elements(op, share.work)
    return Use(storage.element * numbers * share.fresh, 2 * storage.element * numbers)


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


def dropout_apart(op: Dropout, share: Share, storage: Storage) -> Use:
    """A kernel of its own after a fused core, whose softmax it leaves as it is: of attention weights as fused."""
    return dropout_fused(op, share, storage) if op.of == "attention" else dropout_eager(op, share, storage)


def dropout_inside(op: Dropout, share: Share, storage: Storage) -> Use:
    """Inside the attention kernel; elsewhere a kernel of its own."""
    return Use(0.0, 0.0) if op.of == "attention" else dropout_eager(op, share, storage)


def dropout_sdpa(op: Dropout, share: Share, storage: Storage) -> Use:
    """Inside the attention kernel, where there is one."""
    inside = op.of == "attention" and storage.habits.sdpa
    return Use(0.0, 0.0) if inside else dropout_eager(op, share, storage)


_EAGER_ACTIVATIONS = {
    "gelu_new": (4, 18),
    "quick_gelu": (2, 7),
    "relu": (0, 2),
    "bloom_gelu": (1, 18),
    "scale": (0, 2),
    "drop_path": (0, 2),
    "masked_scatter": (0, 3),
    "softcap": (1, 6),
    "pick": (1, 0),
}
"""Function: (tensors kept, tensors read or written). `gelu_new` is eight kernels; `relu` keeps its output, which the
next matrix keeps anyhow, unless dropout comes between; `pick` (of one position) is a view, which holds on to all that
it is of. Others are one kernel that keeps its input."""


def activation_eager(op: Activation, share: Share, storage: Storage) -> Use:
    """A gated one keeps both factors of its product besides."""
    kept, moved = _EAGER_ACTIVATIONS.get(op.function, (1, 2))
    kept += op.function == "relu" and share.dropped
    numbers = storage.element * elements(op, share.work)
    return Use(numbers * (kept + 2 * op.gated), numbers * (moved + 3 * op.gated))


_FREE = frozenset({"scale", "drop_path", "masked_scatter"})
"""Functions that a fused kernel computes without keeping a tensor."""


def activation_fused(op: Activation, share: Share, storage: Storage) -> Use:
    """Its input alone: one tensor, or two where it is gated; none where it only scales."""
    numbers = storage.element * elements(op, share.work)
    return Use(numbers * (0 if op.function in _FREE else 1 + op.gated), numbers * (2 + op.gated))


def activation_narrow(op: Activation, share: Share, storage: Storage) -> Use:
    """As a fused one, which keeps its input in fp8 where matrices do (Megatron-Core,
    `activation_func_fp8_input_store`).
    """
    use = activation_fused(op, share, storage)
    return use._replace(kept=use.kept * storage.read / storage.element)


def activation_compiled(op: Activation, share: Share, storage: Storage) -> Use:
    """As a fused one; of `relu` the output serves, which the next matrix keeps; under dropout a byte for each sign."""
    use = activation_fused(op, share, storage)
    return use._replace(kept=share.dropped * elements(op, share.work)) if op.function == "relu" else use


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
    kept = storage.element * read * share.fresh + wide
    return Use(kept, storage.element * (read + op.hidden * op.experts) + 3 * wide)


def router_eager(op: Router, share: Share, storage: Storage) -> Use:
    """The input, and where the router is wide that and the weight in float32; what the scores become; and for each
    choice its index, 8 bytes, and its weight. Choosing by groups keeps some indices more, which are not counted.
    """
    element, positions = storage.element, share.work.positions
    chosen = 12 * op.top_k
    numbers = {
        "all": 4 * op.experts + chosen + 4,
        "chosen": chosen,
        "drawn": op.top_k * (op.experts * (1 + element) + 16 + element),
    }[storage.habits.router]
    cast = 4.0 * op.hidden * (positions + op.experts) if op.wide and element < 4 else 0.0
    read = cast or element * positions * op.hidden * (share.fresh and not op.wide)
    moved = element * (positions * op.hidden + op.hidden * op.experts) + 12 * positions * op.experts
    return Use(read + positions * numbers, moved)


_EAGER_EXPERTS = {"clamped_swiglu": 7}
"""Function: tensors of a gated expert's inner width that are kept; others keep gate, up, the function of the gate, and
their product."""


def experts_eager(op: Experts, share: Share, storage: Storage) -> Use:
    """Grouped products (torch._grouped_mm) on positions sorted by expert: these, what the first matrices put out, what
    the function makes of it, outputs to be weighed and their weights, three lists of indices of 8 bytes, a fourth where
    there are biases, and where each expert's positions end.
    """
    routed, element = share.work.positions * op.top_k, storage.element
    inner = _EAGER_EXPERTS.get(op.function, 4) if op.gated else 2
    width = 2 * op.hidden + inner * op.ffn
    weight = storage.wide if storage.habits.wide_weights else element
    small = routed * (8 * (3 + op.bias) + weight) + 4 * op.count
    moved = routed * (width + 5 * op.hidden) + op.parameters()
    return Use(element * routed * width + small, element * moved)


def experts_compiled(op: Experts, share: Share, storage: Storage) -> Use:
    """As eager ones, but the function is computed again from what the first matrices put out."""
    use = experts_eager(op, share, storage)
    again = (_EAGER_EXPERTS.get(op.function, 4) - 3 if op.gated else 0) * op.ffn
    numbers = storage.element * share.work.positions * op.top_k * again
    return use._replace(kept=use.kept - numbers, moved=use.moved - numbers)


def routed_experts(op: Experts, share: Share, storage: Storage) -> Use:
    """Positions as sent to the experts, what the first matrices put out, and the product, which has been weighed, so
    that nothing wants what the experts put out (megatron/core/transformer/moe/experts.py, `weighted_bias_swiglu_impl`,
    2025).
    """
    routed = share.work.positions * op.top_k
    width, multiplied = 2 * op.hidden + (3 if op.gated else 2) * op.ffn, op.hidden + op.ffn
    shuffled = 5 * op.hidden
    kept = storage.element * (width - op.hidden - multiplied) + storage.read * multiplied
    return Use(routed * kept, storage.element * (routed * (width + shuffled) + op.parameters()))


def convolution(op: Convolution, share: Share, storage: Storage) -> Use:
    """The input."""
    read = share.work.samples * op.read_positions(share.work) * op.inputs
    moved = read + elements(op, share.work) + op.parameters()
    kept = read
    if storage.on_cpu and storage.habits.chunks and share.made:
        kept = share.work.positions * share.made + share.work.samples * op.surplus * op.outputs
    return Use(storage.element * kept if share.learns else 0.0, storage.element * moved)


def matmul(op: MatMul, share: Share, storage: Storage) -> Use:
    """Both operands, the second taken to be one for each sample."""
    read = share.work.positions * op.inner + share.work.samples * op.inner * op.outputs
    return Use(storage.element * read, storage.element * (read + elements(op, share.work)))
