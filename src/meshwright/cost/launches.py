"""How many kernels the host launches for an operator: where they are small, it is the host that a device waits for.

The counts are those of each implementation's forward: of transformers' code as PyTorch dispatches it (views left out;
`tests/cost/test_launches.py` counts them again), of Megatron-LM as its modules call their kernels. Backward launches
about as many again for each gradient, but from C++ rather than from Python: `BACKWARD` is what it takes of the host for
each launch of forward.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from meshwright.cost.repeats import is_repeated
from meshwright.cost.shares import Share
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
from meshwright.plan.spec import Recompute

BACKWARD = 1.3
"""A fit of step times of small GPTs under full recompute on eight A100 (vTrain, MICRO 2024, ground_truth_single.csv):
0.84 ms of host time for a layer's forward, 1.3 times that for its backward."""

Count = Callable[[Any], float]


class Launches(NamedTuple):
    """Kernels, weighed by what each takes of the host."""

    forward: float = 0.0
    backward: float = 0.0
    """With what recompute launches again."""

    def plus(self, other: "Launches") -> "Launches":
        """Both together."""
        return Launches(self.forward + other.forward, self.backward + other.backward)


_ONE = dict.fromkeys((Linear, Embedding, Add, Convolution, MatMul, Pool, Contrast, Scan), 1.0)
EAGER: Mapping[type, float | Count] = _ONE | {
    Norm: lambda op: 7.0 if op.kind == "rms" else 1.0,
    Attention: lambda op: 7.0 + 2.0 * (op.kv_heads != op.heads),
    Activation: lambda op: (8.0 if op.function == "gelu_new" else 1.0) + op.gated,
    Dropout: lambda op: float(op.probability > 0),
    Rotary: 8.0,
    Router: 8.0,
    Experts: 16.0,
    Parameter: 0.0,
    Loss: 6.0,
}
SDPA = EAGER | {Attention: 2.0}
COMPILED = SDPA | {
    Norm: 1.0,
    Activation: 1.0,
    Dropout: 0.0,
    Rotary: 1.0,
    Add: 0.0,
    Router: 3.0,
    Loss: 2.0,
}
FUSED = EAGER | {
    Norm: 1.0,
    Attention: 6.0,
    Activation: 1.0,
    Rotary: 2.0,
    Loss: 6.0,
}
FLASH = FUSED | {Attention: 2.0}

LAUNCHES: Mapping[str, Mapping[type, float | Count]] = {
    "hf-eager": EAGER,
    "hf-sdpa": SDPA,
    "torch-compile": COMPILED,
    "megatron-eager": EAGER,
    "megatron-fused": FUSED,
    "megatron-fused-eager": EAGER | {Attention: 6.0},
    "megatron-flash": FLASH,
    "megatron-flash-eager": SDPA,
}
"""By the name of the kernel set."""


def launched(kernels: str, share: Share) -> float:
    """Kernels of one operator's forward, in a kernel set by name.

    >>> from meshwright.model.work import Work
    >>> launched("hf-eager", Share(Norm(path="n", kind="rms", width=8), Work(1, 4, 4), learns=True, passes=True))
    7.0
    """
    count = LAUNCHES[kernels][type(share.operator)]
    return count(share.operator) if callable(count) else count


def layer_launches(kernels: str, shares: Iterable[Share], recompute: Recompute) -> Launches:
    """Those of a layer's operators for one micro-batch."""
    total = Launches()
    for share in shares:
        once, learns = launched(kernels, share), share.passes or share.learns
        again = once if learns and is_repeated(share, recompute) else 0.0
        total = total.plus(Launches(once, BACKWARD * once * learns + again))
    return total
