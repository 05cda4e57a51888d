"""How many kernels the host launches for an operator: where they are small, it is the host that a device waits for.

The counts are those of each implementation's forward: of transformers' code as PyTorch dispatches it (views left out;
`tests/cost/test_launches.py` counts them again), of Megatron-LM as its modules call their kernels. Backward launches
about as many again for each gradient, but from C++ rather than from Python: `BACKWARD` is what it takes of the host for
each launch of forward.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

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

BACKWARD = 1.3
"""Twice as many calls at two thirds of the time each, a guess: steps tell the sum of both ways alone (see `FUSED`)."""

EXCHANGE = 5
"""Calls by which the host starts a collective over NCCL: an event on the stream of computing and a wait for it on that
of communication, the kernel, an event behind it and computing's wait for that (torch/csrc/distributed/c10d/
ProcessGroupNCCL.cpp, `collective`, `syncStream` and `WorkNCCL::synchronizeStream`, 2022)."""

Count = Callable[[Any], float]
Counts: TypeAlias = dict[type, float | Count]


class Launches(NamedTuple):
    """Kernels, weighed by what each takes of the host."""

    forward: float = 0.0
    backward: float = 0.0
    """With what recompute launches again."""

    def plus(self, other: "Launches") -> "Launches":
        """Both together."""
        return Launches(self.forward + other.forward, self.backward + other.backward)


_ACTIVATIONS = {"gelu_new": 8.0, "bloom_gelu": 9.0, "quick_gelu": 3.0, "softcap": 3.0, "pick": 0.0}
"""Functions that are written out in Python; others are one kernel."""

_ONE: Counts = dict.fromkeys((Linear, Embedding, Add, Convolution, MatMul, Pool, Contrast, Scan), 1.0)
EAGER: Counts = _ONE | {
    Norm: lambda op: 8.0 if op.kind == "rms" else 1.0,
    Attention: 10.0,
    Activation: lambda op: _ACTIVATIONS.get(op.function, 1.0) + op.gated,
    Dropout: lambda op: float(op.probability > 0),
    Rotary: 10.0,
    Router: 8.0,
    Experts: 16.0,
    Parameter: 0.0,
    Loss: 5.0,
}
"""In bf16 on GPUs: dropout is one kernel there, and a softmax casts what it reads itself. A scan is that of the
mamba-ssm package; transformers' own arithmetic takes four operations for each position."""
SDPA: Counts = EAGER | {Attention: 1.0}
COMPILED: Counts = SDPA | {
    Norm: 1.0,
    Activation: 1.0,
    Dropout: 0.0,
    Rotary: 1.0,
    Add: 0.0,
    Router: 3.0,
    Loss: 2.0,
}
FUSED: Counts = EAGER | {
    Linear: 5.0,
    Norm: 3.0,
    Attention: 18.0,
    Activation: lambda op: 3.0 + op.gated,
    Dropout: lambda op: 5.0 * (op.probability > 0),
    Rotary: 3.0,
}
"""With its bias, copies between layouts, and the state of the random numbers, which tensor ranks keep apart and which
is read and set twice for a dropout: Megatron-LM of 2022 takes 3.0 ms of the host for a layer and micro-batch without
recompute, both ways (vTrain, MICRO 2024, ground_truth_single.csv: hidden 1,024, one sample, one tensor rank), which 64
calls forward and `BACKWARD` times as much backward are at 20 microseconds each."""
FLASH: Counts = FUSED | {
    Linear: 1.0,
    Norm: 1.0,
    Attention: 2.0,
    Activation: 1.0,
    Dropout: lambda op: float(op.probability > 0),
    Rotary: 1.0,
    Loss: 3.0,
}

LAUNCHES: Mapping[str, Counts] = {
    "hf-eager": EAGER,
    "hf-sdpa": SDPA,
    "mingpt": EAGER,
    "torch-compile": COMPILED,
    "torchtitan": COMPILED | {Attention: 3.0, Rotary: EAGER[Rotary]},
    "megatron-eager": FUSED | {Norm: EAGER[Norm], Rotary: EAGER[Rotary]},
    "megatron-fused": FUSED,
    "megatron-fused-adding": FUSED,
    "megatron-fused-eager": FUSED | {Norm: EAGER[Norm], Rotary: EAGER[Rotary]},
    "megatron-flash": FLASH,
    "megatron-flash-narrow": FLASH,
    "megatron-deepspeed": FUSED,
    "megatron-flash-eager": SDPA,
    "megatron-flash1-eager": SDPA,
    "megatron-flash-norm": SDPA | {Norm: 1.0},
    "nanotron": FLASH,
    "internevo": FLASH,
    "hf-sdpa-xentropy": SDPA | {Loss: 7.0},
    "hf-unpadded-xentropy": SDPA | {Attention: 24.0, Loss: 7.0},
}
"""By the name of the kernel set."""


def launched(kernels: str, share: Share) -> float:
    """Kernels of one operator's forward, in a kernel set by name.

    >>> from meshwright.model.work import Work
    >>> launched("hf-eager", Share(Norm(path="n", kind="rms", width=8), Work(1, 4, 4), learns=True, passes=True))
    8.0
    """
    count = LAUNCHES[kernels][type(share.operator)]
    return count(share.operator) if callable(count) else count
