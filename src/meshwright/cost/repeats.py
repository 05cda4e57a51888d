"""Which operators recompute runs again in backward."""

from meshwright.cost.shares import Share
from meshwright.model.operators import Attention, Convolution, Dropout, Experts, Linear, Loss, Router
from meshwright.plan.spec import Recompute, Save


def is_core(share: Share) -> bool:
    """Whether an operator belongs to the core attention, which selective recompute computes again."""
    core = share.operator
    return isinstance(core, Attention) or (isinstance(core, Dropout) and core.of == "attention")


def is_repeated(share: Share, recompute: Recompute) -> bool:
    """Whether recompute runs an operator again: not the loss, whose backward follows at once."""
    if isinstance(share.operator, Loss):
        return False
    if isinstance(recompute, Save):
        matmul = isinstance(share.operator, Linear | Experts | Router | Convolution)
        saved = "matmul" in recompute.save or ("half-matmul" in recompute.save and share.matrix % 2 == 1)
        return not ((matmul and saved) or (is_core(share) and "attention" in recompute.save))
    return recompute == "full" or (recompute == "selective" and is_core(share))
