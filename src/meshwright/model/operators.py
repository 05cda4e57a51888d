"""The operators that layers are made of. Each knows its parameters and its matrix FLOPs; what an implementation keeps
and moves is a matter of kernel sets (`cost/kernels`).

An operator works on `samples` x `length` positions of its layer's stream, unless it says how many positions a sample
has. `{i}` in a path stands for the layer's index in its container.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from meshwright.document import Record
from meshwright.units import Flag, NonNegativeInt, PositiveInt


class Work(NamedTuple):
    """How much passes through an operator: samples, positions per sample, and positions that attention looks at."""

    samples: float
    length: float
    context: float

    @property
    def positions(self) -> float:
        """Positions in all."""
        return self.samples * self.length


class _Operator(Record):
    path: str = ""
    """Where its parameters live: the module's path in the model; `{i}` is the layer's index. Empty where it has
    none.
    """

    @model_serializer(mode="wrap")
    def _say_which(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        return {"op": getattr(self, "op", "")} | fields

    def parameters(self) -> int:
        """Trainable numbers."""
        return 0

    def flops(self, work: Work) -> float:
        """Matrix FLOPs of one forward: a multiply and an add count as two."""
        return 0.0


class Linear(_Operator):
    """y = x W + b. `split` says how tensor parallelism may cut it: by output (`column`) or by input (`row`)."""

    op: Literal["linear"] = "linear"
    inputs: PositiveInt
    outputs: PositiveInt
    bias: Flag = False
    split: Literal["column", "row"] | None = None
    segments: tuple[PositiveInt, ...] = ()
    """Widths of what is fused along the outputs (query, key, value); each is cut by itself."""
    tied: Flag = False
    """True where the weight is another operator's parameter (see ModelSpec.ties) and is counted there."""

    def parameters(self) -> int:
        """inputs x outputs, and the bias; a tied weight is its owner's."""
        return (0 if self.tied else self.inputs * self.outputs) + (self.outputs if self.bias else 0)

    def flops(self, work: Work) -> float:
        """2 · positions · inputs · outputs."""
        return 2.0 * work.positions * self.inputs * self.outputs


class Embedding(_Operator):
    """A table look-up. `split: vocabulary` cuts the rows."""

    op: Literal["embedding"] = "embedding"
    rows: PositiveInt
    width: PositiveInt
    split: Literal["vocabulary"] | None = None
    tied: Flag = False
    """True where the table is another operator's parameter (see ModelSpec.ties) and is counted there."""

    def parameters(self) -> int:
        """rows x width; a tied table is its owner's."""
        return 0 if self.tied else self.rows * self.width


class Norm(_Operator):
    """Normalisation over the width (`rms`, `layer`), or over the batch (`batch`), whose statistics span the
    micro-batch.
    """

    op: Literal["norm"] = "norm"
    kind: Literal["rms", "layer", "batch", "group"]
    width: PositiveInt
    bias: Flag = False
    affine: Flag = True
    per_head: Flag = False
    """True for a norm of queries and keys, whose width is one head's."""
    positions: PositiveInt | None = None

    def parameters(self) -> int:
        """A gain, and where there is one a bias, for each of the width."""
        return self.width * (1 + self.bias) if self.affine else 0


class Attention(_Operator):
    """The core: softmax(q kᵀ) v. Projections are operators of their own."""

    op: Literal["attention"] = "attention"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    value_dim: PositiveInt | None = None
    """Width of a value head where it differs from head_dim (MLA)."""
    causal: Flag = True
    window: PositiveInt | None = None
    cross: str | None = None
    """The stream whose positions are looked at, where it is not the layer's own."""
    sinks: Flag = False
    """One learned logit per head (gpt-oss)."""

    def parameters(self) -> int:
        """The sinks, where it has any."""
        return self.heads if self.sinks else 0

    def flops(self, work: Work) -> float:
        """2 · positions · context · heads · (head_dim + value_dim): the full square; the causal half is a separate
        matter.
        """
        context = min(work.context, self.window) if self.window else work.context
        return 2.0 * work.positions * context * self.heads * (self.head_dim + (self.value_dim or self.head_dim))


class Activation(_Operator):
    """An element-wise function on `width` values a position; gated ones read twice that."""

    op: Literal["activation"] = "activation"
    function: str = "gelu"
    width: PositiveInt
    gated: Flag = False
    positions: PositiveInt | None = None


class Dropout(_Operator):
    """Dropout on `width` values a position, with the probability that the model's configuration gives."""

    op: Literal["dropout"] = "dropout"
    width: PositiveInt
    probability: Annotated[float, Field(ge=0, lt=1)]
    of: Literal["hidden", "attention"] = "hidden"


class Add(_Operator):
    """The residual addition."""

    op: Literal["add"] = "add"
    width: PositiveInt
    positions: PositiveInt | None = None


class Rotary(_Operator):
    """Rotary position embedding of `width` = heads · head_dim values of queries and keys a position."""

    op: Literal["rotary"] = "rotary"
    width: PositiveInt


class Router(_Operator):
    """Chooses `top_k` of `experts` for each position."""

    op: Literal["router"] = "router"
    hidden: PositiveInt
    experts: PositiveInt
    top_k: PositiveInt
    bias: Flag = False

    def parameters(self) -> int:
        """hidden x experts."""
        return self.hidden * self.experts + (self.experts if self.bias else 0)

    def flops(self, work: Work) -> float:
        """2 · positions · hidden · experts."""
        return 2.0 * work.positions * self.hidden * self.experts


class Experts(_Operator):
    """Routed feed-forward experts: `count` of them, `top_k` used by each position."""

    op: Literal["experts"] = "experts"
    count: PositiveInt
    top_k: PositiveInt
    hidden: PositiveInt
    ffn: PositiveInt
    gated: Flag = True
    bias: Flag = False

    def parameters(self) -> int:
        """count · (2 or 3) · hidden · ffn, and the biases."""
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * self.ffn + self.hidden if self.bias else 0
        return self.count * (matrices * self.hidden * self.ffn + biases)

    def flops(self, work: Work) -> float:
        """2 · positions · top_k · (2 or 3) · hidden · ffn."""
        return 2.0 * work.positions * self.top_k * (3 if self.gated else 2) * self.hidden * self.ffn


class Convolution(_Operator):
    """A convolution in one or more dimensions; `positions` is the number of output positions of one sample, the layer's
    stream where it is not said."""

    op: Literal["convolution"] = "convolution"
    inputs: PositiveInt
    outputs: PositiveInt
    kernel: tuple[PositiveInt, ...]
    positions: PositiveInt | None = None
    groups: PositiveInt = 1
    bias: Flag = False

    def parameters(self) -> int:
        """inputs / groups · outputs · kernel, and the bias."""
        return self.inputs // self.groups * self.outputs * math.prod(self.kernel) + (self.outputs if self.bias else 0)

    def flops(self, work: Work) -> float:
        """2 · samples · positions · inputs / groups · outputs · kernel."""
        taps = self.inputs // self.groups * self.outputs * math.prod(self.kernel)
        return 2.0 * work.samples * (self.positions or work.length) * taps


class Scan(_Operator):
    """A selective state-space scan (Mamba): `width` channels with `state` numbers each."""

    op: Literal["scan"] = "scan"
    width: PositiveInt
    state: PositiveInt


class Pool(_Operator):
    """Pooling down to `positions` positions a sample of `width` values."""

    op: Literal["pool"] = "pool"
    width: PositiveInt
    positions: PositiveInt


class Parameter(_Operator):
    """A parameter of a module's own (class token, layer scale); `path` names the parameter itself."""

    op: Literal["parameter"] = "parameter"
    shape: tuple[PositiveInt, ...]

    def parameters(self) -> int:
        """The product of the shape."""
        return math.prod(self.shape)


class Loss(_Operator):
    """Cross entropy over `classes`; `positions` where it is taken once a sample (classification)."""

    op: Literal["loss"] = "loss"
    classes: NonNegativeInt
    positions: PositiveInt | None = None


Operator = Annotated[
    Linear
    | Embedding
    | Norm
    | Attention
    | Activation
    | Dropout
    | Add
    | Rotary
    | Router
    | Experts
    | Convolution
    | Scan
    | Pool
    | Parameter
    | Loss,
    Field(discriminator="op"),
]
