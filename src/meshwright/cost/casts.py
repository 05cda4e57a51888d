"""What it takes to make numbers narrow for products in fp8 or fp4, whose results are as wide as before."""

from meshwright.cost.kernels import KernelSet
from meshwright.cost.shares import Share
from meshwright.model.operators import Convolution, Experts, Linear


def casts(share: Share, kernels: KernelSet, element: float, narrow: float) -> tuple[float, float]:
    """Bytes moved besides those of the products, forward and backward.

    With scales of the tensor at hand (torchao.float8, "dynamic scaling") a matrix's input is read for its largest
    value, read again and written narrow, and once more transposed where the weight learns, since products of narrow
    numbers take rows of both operands; so are weights, in every forward. With scales of the step before, or of small
    blocks, the kernel that makes an input writes it narrow in place of wide, so that the transposed copy alone is more
    (NVIDIA, Transformer Engine, "FP8 primer", 2023). In backward the gradient of a matrix's output is cast, in both.

    16 positions of 8 numbers that become 4, in bf16 and fp8: 1 x 16 x 8 and (2 + 1 + 1) x 16 x 4.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=8, outputs=4), Work(1, 16, 16), learns=True, passes=True)
    >>> casts(share, KERNEL_SETS["megatron-flash"], 2, 1)
    (128.0, 256.0)
    """
    read, written, weights = _numbers(share)
    once = element * (1 + kernels.scales_at_hand) + narrow
    back = written * (once * (share.passes or share.learns) + narrow * share.learns)
    if not kernels.scales_at_hand:
        return read * narrow * share.learns, back
    return read * (once + narrow * share.learns) + weights * (once + narrow * share.passes), back


def _numbers(share: Share) -> tuple[float, float, float]:
    """Read, written, and of weights."""
    operator, positions = share.operator, share.work.positions
    match operator:
        case Linear():
            read, written = positions * operator.inputs, positions * operator.outputs
        case Experts():
            routed = positions * operator.top_k
            inner = operator.ffn * (1 + operator.gated)
            read, written = routed * (operator.hidden + operator.ffn), routed * (inner + operator.hidden)
        case Convolution():
            read = share.work.samples * operator.read_positions(share.work) * operator.inputs
            written = share.work.samples * operator.computed_positions(share.work) * operator.outputs
        case _:
            return 0.0, 0.0, 0.0
    return float(read), float(written), float(operator.parameters())
