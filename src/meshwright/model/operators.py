"""The operators that layers are made of. Each knows its parameters and its matrix FLOPs; what an implementation keeps
and moves is a matter of kernel sets (`cost/kernels`).

An operator works on `samples` x `length` positions of its layer's stream, unless it names another stream or says how
many positions a sample has. `{i}` in a path stands for the layer's index in its container.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from meshwright.document import Record
from meshwright.model.work import Flops, Work
from meshwright.units import Flag, NonNegativeInt, PositiveInt


class _Operator(Record):
    path: str = ""
    """Where its parameters live: the module's path in the model; `{i}` is the layer's index. Empty where it has
    none.
    """
    stream: str | None = None
    """The stream whose positions it works on, where it is not the layer's own (keys and values of cross-attention)."""
    positions: PositiveInt | None = None
    """Positions of a sample that it works on, where they are no stream's (one class token, the taps of a table)."""

    @model_serializer(mode="wrap")
    def _say_which(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        return {"op": getattr(self, "op", "")} | fields

    def parameters(self) -> int:
        """Trainable numbers."""
        return 0

    def flops(self, work: Work) -> Flops:
        """Matrix FLOPs, forward and backward."""
        return Flops()


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

    def flops(self, work: Work) -> Flops:
        """2 · positions · inputs · outputs; as many for each of backward's two products."""
        return Flops.by_weights(2.0 * work.positions * self.inputs * self.outputs)


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
    heads: PositiveInt | None = None
    """Of queries or keys: how many heads it works on, each by itself; the width is then one head's."""

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
    """Positions that each one sees, where a mask hides the others (sliding windows)."""
    block: PositiveInt | None = None
    """Positions are cut into blocks of so many, which see themselves alone (Swin's windows)."""
    cross: str | None = None
    """The stream whose positions are looked at, where it is not the layer's own."""
    sinks: Flag = False
    """One learned logit per head (gpt-oss)."""
    alibi: Flag = False
    """True where each score gets a bias by its distance instead of positions in the stream (Press 2021)."""
    relative: Flag = False
    """True where each score gets a learned bias by its distance, from a table (T5, Swin)."""
    capped: Flag = False
    """True where scores go through a tanh before the softmax (Gemma 2)."""

    def parameters(self) -> int:
        """The sinks, where it has any."""
        return self.heads if self.sinks else 0

    def flops(self, work: Work) -> Flops:
        """2 · positions · context · heads · (head_dim + value_dim) forward, twice that backward."""
        value_dim = self.value_dim or self.head_dim
        scores = 2.0 * work.positions * work.context * self.heads
        forward = scores * (self.head_dim + value_dim)
        return Flops(forward, 2 * forward, 0.0, forward * self.hidden_share(work.context), scores * self.head_dim)

    def hidden_share(self, context: float) -> float:
        """The share of the scores that the mask hides: of `context` positions each sees the `window` before it, or all
        before it; the first ones see fewer.

        >>> core = Attention(heads=1, kv_heads=1, head_dim=1, window=1024)
        >>> core.hidden_share(1024), core.hidden_share(8192)
        (0.5, 0.8828125)
        """
        seen = min(1.0, (self.window or context) / context)
        if self.cross is not None:
            return 0.0
        return 1 - seen * (1 - seen / 2) if self.causal else 1 - seen


class Activation(_Operator):
    """An element-wise function on `width` values a position; gated ones read twice that."""

    op: Literal["activation"] = "activation"
    function: str = "gelu"
    width: PositiveInt
    gated: Flag = False


class Dropout(_Operator):
    """Dropout on `width` values a position, with the probability that the model's configuration gives."""

    op: Literal["dropout"] = "dropout"
    width: PositiveInt
    probability: Annotated[float, Field(ge=0, lt=1)]
    of: Literal["hidden", "attention"] = "hidden"
    """`attention`: on the weights of an attention core of `width` heads; `cross` and `block` are then the core's."""
    cross: str | None = None
    block: PositiveInt | None = None


class Add(_Operator):
    """The residual addition."""

    op: Literal["add"] = "add"
    width: PositiveInt


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
    function: Literal["softmax", "sigmoid"] = "softmax"
    """What makes weights of the scores."""
    wide: Flag = False
    """True where it works in float32 whatever the compute dtype (DeepSeek)."""

    def parameters(self) -> int:
        """hidden x experts."""
        return self.hidden * self.experts + (self.experts if self.bias else 0)

    def flops(self, work: Work) -> Flops:
        """2 · positions · hidden · experts; as many for each of backward's two products."""
        return Flops.by_weights(2.0 * work.positions * self.hidden * self.experts)


class Experts(_Operator):
    """Routed feed-forward experts: `count` of them, `top_k` used by each position."""

    op: Literal["experts"] = "experts"
    count: PositiveInt
    top_k: PositiveInt
    hidden: PositiveInt
    ffn: PositiveInt
    gated: Flag = True
    bias: Flag = False
    function: str = "silu"
    """Its activation, as an Activation names it."""
    groups: PositiveInt = 1
    """Runs of equally many experts: a position uses those of `used_groups` of them alone."""
    used_groups: PositiveInt = 1

    def parameters(self) -> int:
        """count · (2 or 3) · hidden · ffn, and the biases."""
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * self.ffn + self.hidden if self.bias else 0
        return self.count * (matrices * self.hidden * self.ffn + biases)

    def idle_parameters(self) -> int:
        """Those that one position does not use."""
        return self.parameters() // self.count * (self.count - self.top_k)

    def flops(self, work: Work) -> Flops:
        """2 · positions · top_k · (2 or 3) · hidden · ffn; as many for each of backward's two products."""
        return Flops.by_weights(2.0 * work.positions * self.top_k * (3 if self.gated else 2) * self.hidden * self.ffn)


class Convolution(_Operator):
    """A convolution in one or more dimensions, by its output positions."""

    op: Literal["convolution"] = "convolution"
    inputs: PositiveInt
    outputs: PositiveInt
    kernel: tuple[PositiveInt, ...]
    input_positions: PositiveInt | None = None
    """Positions of a sample that it reads, where a stride makes them others than it puts out."""
    transposed: Flag = False
    """True for one that spreads each input position over several outputs (up-sampling)."""
    surplus: NonNegativeInt = 0
    """Output positions of a sample that it computes besides and throws away (a causal one that is padded at both
    ends).
    """
    groups: PositiveInt = 1
    bias: Flag = False

    def parameters(self) -> int:
        """inputs / groups · outputs · kernel, and the bias."""
        return self.inputs // self.groups * self.outputs * math.prod(self.kernel) + (self.outputs if self.bias else 0)

    def flops(self, work: Work) -> Flops:
        """2 · output positions · inputs / groups · outputs · kernel; as many for each of backward's two products. A
        transposed one works by its input positions.
        """
        positions = work.samples * self.computed_positions(work)
        return Flops.by_weights(2.0 * positions * (self.inputs // self.groups) * self.outputs * math.prod(self.kernel))

    def computed_positions(self, work: Work) -> float:
        """Positions of a sample that its product has a row for."""
        return self.read_positions(work) if self.transposed else work.length + self.surplus

    def read_positions(self, work: Work) -> float:
        """Positions of a sample that it reads."""
        return self.input_positions or work.length


class Scan(_Operator):
    """A selective state-space scan: each channel has `state` numbers that every position updates (Gu and Dao 2023).

    With a `chunk` it is the dual form (Dao and Gu 2024, section 6): products within chunks, a recurrence between them.
    """

    op: Literal["scan"] = "scan"
    width: PositiveInt
    """Channels; of one head where it has heads."""
    state: PositiveInt
    heads: PositiveInt | None = None
    """Groups of channels that decay alike (Mamba 2), each worked on by itself."""
    chunk: PositiveInt | None = None
    """Positions of a chunk; the last one is filled up."""

    def flops(self, work: Work) -> Flops:
        """Forward 2 · positions · channels · state for reading the states out; twice that backward. The update of the
        states has no matrices: about as much again, element by element, is not counted here. A chunked scan makes
        products of the update too: `chunk_flops`.
        """
        channels = self.width * (self.heads or 1)
        if self.chunk:
            forward = work.samples * self.chunk_flops(math.ceil(work.length / self.chunk), self.chunk)
        else:
            forward = 2.0 * work.positions * channels * self.state
        return Flops(forward, 2 * forward)

    def chunk_flops(self, chunks: int, length: int) -> float:
        """Of one sample: within chunks, scores of all pairs of positions, and their weighted sum; into a state at the
        end of each and out of the one before each; and between chunks, each state from all before it.
        """
        heads, size = self.heads or 1, self.width * self.state
        within = chunks * length**2 * (self.state + self.width)
        return 2.0 * heads * (within + 2 * chunks * length * size + (chunks + 1) ** 2 * size)


class MatMul(_Operator):
    """A product of two activations outside of attention: for each position `outputs` sums over `inner` products."""

    op: Literal["matmul"] = "matmul"
    inner: PositiveInt
    outputs: PositiveInt
    gradients: Literal[0, 1, 2] = 2
    """Operands that want a gradient: one where the other is a constant (the edges of a graph)."""
    cross: str | None = None
    """The stream of which each position meets all others, where it does (the sum over a graph's nodes)."""

    def flops(self, work: Work) -> Flops:
        """2 · positions · inner · outputs, for each position that one meets; as many for the gradient of each operand
        that wants one.
        """
        forward = 2.0 * work.positions * self.inner * self.outputs * (work.context if self.cross else 1)
        return Flops(forward, self.gradients * forward)


class Pool(_Operator):
    """Pooling down to its positions, of `width` values each."""

    op: Literal["pool"] = "pool"
    width: PositiveInt


class Parameter(_Operator):
    """A parameter of a module's own (class token, layer scale); `path` names the parameter itself."""

    op: Literal["parameter"] = "parameter"
    shape: tuple[PositiveInt, ...]

    def parameters(self) -> int:
        """The product of the shape."""
        return math.prod(self.shape)


class Contrast(_Operator):
    """Compares each sample of the micro-batch, as `width` values, with every other one's (CLIP), and its cross entropy
    both ways.
    """

    op: Literal["contrast"] = "contrast"
    width: PositiveInt

    def flops(self, work: Work) -> Flops:
        """2 · samples² · width; as many for the gradient of each operand."""
        forward = 2.0 * work.samples**2 * self.width
        return Flops(forward, 2 * forward)


class Loss(_Operator):
    """Cross entropy over `classes`; at one position where it is taken once a sample (classification)."""

    op: Literal["loss"] = "loss"
    classes: NonNegativeInt


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
    | MatMul
    | Pool
    | Parameter
    | Contrast
    | Loss,
    Field(discriminator="op"),
]


def work_of(operator: Operator, samples: float, lengths: Mapping[str, float], stream: str) -> Work:
    """The whole work of an operator of a layer on `stream`, for so many samples with these lengths of streams.

    >>> work_of(Attention(heads=8, kv_heads=8, head_dim=64, cross="frames"), 2, {"tokens": 5, "frames": 9}, "tokens")
    Work(samples=2, length=5, context=9)
    """
    length = operator.positions or lengths[operator.stream or stream]
    known = vars(operator)
    cross, block = known.get("cross"), known.get("block")
    return Work(samples, length, block or (lengths[cross] if cross else length))
