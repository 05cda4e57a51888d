"""What stays of a layer between the two halves of its backward: that for the input's gradient, which the stage before
waits for, and that for the gradients of the weights, which may come later (Qi 2023, section 2.1).

Zero bubble's code for Megatron-LM puts away each matrix's input and the gradient of its output. In
torch.distributed.pipelining the first half is a backward that retains its graph (`stage_backward_input`): all that
forward kept stays, and beside it the gradient of what every operator with parameters puts out. That is measured on
transformers' modules by `tests/cost/test_halves.py` (torch 2.13, CPU), not compiled ones. Of its first stage torch runs
all of the backward as the second half; that is not told apart here.
"""

from collections.abc import Sequence

from meshwright.cost.kernels import KernelSet
from meshwright.cost.shares import Share, elements
from meshwright.cost.uses import Storage
from meshwright.model.operators import Convolution, Embedding, Experts, Linear, Router


def between_halves(shares: Sequence[Share], kept: float, kernels: KernelSet, storage: Storage) -> float:
    """Bytes of one layer and micro-batch. `kept` is what the layer keeps from forward on, after recompute and offload.

    A bf16 matrix from 8 to 3 on ten positions: the gradient of 10 x 3 numbers, and its input of 10 x 8 numbers, or
    else all that was kept.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=8, outputs=3), Work(samples=2, length=5, context=5), learns=True, passes=True)
    >>> [between_halves([share], 500.0, KERNEL_SETS[name], Storage()) for name in ("megatron-fused", "hf-sdpa")]
    [220, 560.0]
    """
    learning = [share for share in shares if share.learns and not isinstance(share.operator, Embedding)]
    if kernels.retains:
        return kept + sum(storage.element * _put_out(share) for share in learning)
    products = [share for share in learning if isinstance(share.operator, Linear | Convolution | Experts | Router)]
    return sum(storage.element * (_read(share) + _put_out(share)) for share in products)


def _put_out(share: Share) -> float:
    """Numbers that an operator's products put out, or it itself where it has none."""
    match share.operator:
        case Experts() as experts:
            return share.work.positions * experts.top_k * (experts.ffn * (1 + experts.gated) + experts.hidden)
        case operator:
            return elements(operator, share.work)


def _read(share: Share) -> float:
    """Numbers that its products read, where no neighbour has put them away already."""
    match share.operator:
        case Experts() as experts:
            return share.work.positions * experts.top_k * (experts.hidden + experts.ffn)
        case Router() as router:
            return share.work.positions * router.hidden * share.fresh
        case Convolution() as convolution:
            return share.work.samples * convolution.read_positions(share.work) * convolution.inputs
        case Linear() as linear:
            return share.work.positions * linear.inputs * share.fresh
    return 0.0
