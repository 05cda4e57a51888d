"""Which operators recompute runs again in backward, and what nothing keeps for that reason."""

from collections.abc import Callable, Iterable

from meshwright.cost.kernels import KernelSet
from meshwright.cost.shares import Share, elements
from meshwright.cost.uses import Storage, Use
from meshwright.model.cuts import makes_heads
from meshwright.model.operators import (
    Activation,
    Attention,
    Convolution,
    Dropout,
    Experts,
    Linear,
    Loss,
    Norm,
    Router,
)
from meshwright.plan.spec import Recompute, Repeat, Save

_LATENT_TO_HEADS = ("q_b_proj", "kv_b_proj")


def is_core(share: Share) -> bool:
    """Whether an operator belongs to the core attention, which selective recompute computes again."""
    core = share.operator
    return isinstance(core, Attention) or (isinstance(core, Dropout) and core.of == "attention")


def is_norm(share: Share) -> bool:
    """A norm of the stream, not of single heads."""
    return isinstance(share.operator, Norm) and share.operator.heads is None


def is_activation(share: Share) -> bool:
    """The function between two matrices; that inside of experts is part of these."""
    return isinstance(share.operator, Activation)


def is_up_projection(share: Share) -> bool:
    """A matrix that makes queries, or keys and values, of MLA's latents (DeepSeek-V2, 2024, section 2.1)."""
    return isinstance(share.operator, Linear) and share.operator.path.endswith(_LATENT_TO_HEADS)


REPEATABLE: dict[str, Callable[[Share], bool]] = {
    "norm": is_norm,
    "activation": is_activation,
    "up-projection": is_up_projection,
}
"""By the word of a plan (`Repeat`)."""


def is_repeated(share: Share, recompute: Recompute) -> bool:
    """Whether recompute runs an operator again: not the loss, whose backward follows at once."""
    if isinstance(share.operator, Loss):
        return False
    if isinstance(recompute, Repeat):
        return any(REPEATABLE[word](share) for word in recompute.repeat)
    if isinstance(recompute, Save):
        matmul = isinstance(share.operator, Linear | Experts | Router | Convolution)
        saved = "matmul" in recompute.save or ("half-matmul" in recompute.save and share.matrix % 2 == 1)
        saved |= "qkv" in recompute.save and makes_heads(share.operator)
        return not ((matmul and saved) or (is_core(share) and "attention" in recompute.save))
    return recompute == "full" or (recompute == "selective" and is_core(share))


def kept_beside(shares: Iterable[Share], recompute: Repeat, kernels: KernelSet, storage: Storage) -> float:
    """Bytes that a layer keeps where some of its operators run again: these keep their inputs, and what they put out is
    kept by none of those that read it.

    A norm and a matrix from 8 to 3 on ten positions keep 160 bytes each; of the matrix's input nothing is left.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.work import Work
    >>> norm, matrix = (
    ...     Share(each, Work(2, 5, 5), learns=True, passes=True)
    ...     for each in (Norm(kind="rms", width=8), Linear(inputs=8, outputs=3))
    ... )
    >>> kept_beside([norm, matrix], Repeat(repeat=("norm",)), KERNEL_SETS["megatron-flash"], Storage())
    160.0
    """
    found, again = 0.0, False
    """Whether what made the stream that matrices read runs again: they leave it as it is."""
    for share in shares:
        use = kernels.use(share, storage)
        found += max(0.0, use.kept - _left_out(share, use, storage, recompute, again=again))
        if not isinstance(share.operator, Linear | Router):
            again = is_repeated(share, recompute)
    return found


def _left_out(share: Share, use: Use, storage: Storage, recompute: Repeat, *, again: bool) -> float:
    """What an operator does not keep, of what it would; `again`: what made its input runs again."""
    operator = share.operator
    match operator:
        case Linear():
            return use.kept * again
        case Router():
            return storage.element * share.work.positions * operator.hidden * share.fresh * again
        case Experts():
            product = share.work.positions * operator.top_k * operator.ffn
            return storage.read * product * ("activation" in recompute.repeat)
        case Attention(value_dim=int()):  # MLA, whose up-projections make all that it reads
            return (use.kept - use.core) * ("up-projection" in recompute.repeat)
        case _ if is_repeated(share, recompute):
            read = 1 + bool(vars(operator).get("gated"))
            return use.kept - storage.element * elements(operator, share.work) * read
    return 0.0
