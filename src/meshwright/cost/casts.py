"""What it takes to make numbers narrow for products in fp8 or fp4, whose results are as wide as before.

Who does it, by kernel set:

    within   The kernel that makes a matrix's input writes it narrow in place of wide, so that the transposed copy alone
             is more, which gradients of weights want (NVIDIA, Transformer Engine, "FP8 primer", 2023). Positions that
             go to experts are cast by a kernel of their own, and so are gradients; they are also copied, each expert's
             to a multiple of 16, and back (megatron/core/transformer/moe/experts.py, Fp8Padding, 2024).
    once     A kernel reads it wide, and writes it narrow, as it is and transposed: by the scale of the step before, or
             by a largest value that the kernel before has found (torch.compile: torchao/float8/README.md, 2025).
    twice    Its largest value is looked for first, by a kernel of its own (torchao.float8 without torch.compile).

One scale serves a tensor, and its transposed copy too. Scales of rows do not: what is summed over the other dimension
is read and scaled again, its largest values first, since no kernel has passed over them in that order (torchao.float8,
"rowwise"). Weights are cast in every forward, except within, where they stay so from one micro-batch to the next.
"""

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.cost.kernels import KernelSet
from meshwright.cost.shares import Share
from meshwright.model.operators import Convolution, Experts, Linear, Loss, Operator
from meshwright.recipe.spec import BYTES, Precision


class Narrow(NamedTuple):
    """What operands of products with weights are narrowed to."""

    bytes: float
    """Of a number."""
    by_rows: bool = False
    """True where each row has a scale; otherwise tensors, or small blocks."""


def narrow_of(precision: Precision, operators: Iterable[Operator]) -> Narrow | None:
    """Of a layer's products. A head and its loss are computed as wide as ever (Transformer Engine's and torchao's
    recipes leave them out).

    >>> narrow_of(Precision(matmul="fp8"), [Linear(inputs=4, outputs=8)])
    Narrow(bytes=1, by_rows=False)
    """
    if precision.matmul is None or any(isinstance(operator, Loss) for operator in operators):
        return None
    return Narrow(BYTES[precision.matmul], precision.scaling == "rows")


def gathered(narrow: Narrow | None, kernels: KernelSet, element: float) -> float:
    """Bytes of a number that tensor ranks gather for a product: cast before, where the ranks' runs share a scale
    (Transformer Engine; torchtitan's Float8ColwiseParallel, which scales of rows have nothing of, 2025).
    """
    return narrow.bytes if narrow and kernels.gathers_narrow and not narrow.by_rows else element


def casts(share: Share, kernels: KernelSet, element: float, narrow: Narrow) -> tuple[float, float]:
    """Bytes moved besides those of the products, forward and backward. What is gathered narrow is cast before, and so
    by each rank its own run; what is gathered is transposed whole.

    16 positions of 8 numbers that become 4, in bf16 and fp8, within: 1 x 16 x 8 and (2 + 1 + 1) x 16 x 4. Once, with
    the 8 x 4 of the weights too: (2 + 1 + 1) (16 x 8 + 8 x 4) forward.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=8, outputs=4), Work(1, 16, 16), learns=True, passes=True)
    >>> casts(share, KERNEL_SETS["megatron-flash"], 2, Narrow(1))
    (128.0, 256.0)
    >>> casts(share, KERNEL_SETS["torch-compile"], 2, Narrow(1))
    (640.0, 256.0)
    """
    numbers, one_way = _numbers(share), element * (1 + (kernels.casts == "twice")) + narrow.bytes
    if narrow.by_rows:
        return _by_rows(share, numbers, one_way, 2 * element + narrow.bytes)
    read, written, weights = numbers
    own_read = read / (share.scattered if kernels.gathers_narrow else 1)
    own_written = written / (share.left if kernels.gathers_narrow else 1)
    turned = narrow.bytes * share.learns
    back = own_written * one_way * (share.passes or share.learns) + written * turned
    if kernels.casts == "within" and isinstance(share.operator, Experts):
        padded = 4 * element * share.work.positions * share.operator.top_k * share.operator.hidden
        return read * (one_way + turned) + padded, back + padded * (share.passes or share.learns)
    if kernels.casts == "within":
        return read * turned, back
    return own_read * one_way + read * turned + weights * (one_way + narrow.bytes * share.passes), back


def _by_rows(share: Share, numbers: "_Numbers", one_way: float, other_way: float) -> tuple[float, float]:
    """As `casts`, where each row has a scale: one way 2 + 1 bytes, the other 2 + 2 + 1, which is backward's way for the
    16 x 8 of the input, the 8 x 4 of the weights, and one of the two for the 16 x 4 of the output's gradient.

    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=8, outputs=4), Work(1, 16, 16), learns=True, passes=True)
    >>> _by_rows(share, _numbers(share), 3, 5)
    (480.0, 1312.0)
    """
    read, written, weights = numbers
    by_input = written * one_way + weights * other_way
    by_weight = (written + read) * other_way
    return (read + weights) * one_way, share.passes * by_input + share.learns * by_weight


class _Numbers(NamedTuple):
    read: float
    """Once where several matrices read it."""
    written: float
    weights: float


def _numbers(share: Share) -> _Numbers:
    operator, positions = share.operator, share.work.positions
    match operator:
        case Linear():
            read, written = positions * operator.inputs * share.fresh, positions * operator.outputs
        case Experts():
            routed = positions * operator.top_k
            inner = operator.ffn * (1 + operator.gated)
            read, written = routed * (operator.hidden + operator.ffn), routed * (inner + operator.hidden)
        case Convolution():
            read = share.work.samples * operator.read_positions(share.work) * operator.inputs
            written = share.work.samples * operator.computed_positions(share.work) * operator.outputs
        case _:
            return _Numbers(0.0, 0.0, 0.0)
    return _Numbers(float(read), float(written), float(operator.parameters()))
