"""Recipe: what is asked for. Everything that changes convergence, or is a wish."""

from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

from pydantic import Field

from meshwright.document import Document, Record
from meshwright.units import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Float = Literal["fp64", "fp32", "fp16", "bf16"]
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5}
"""Bytes of one number."""


class Precision(Record):
    """Dtypes. Parameters are held and computed in `compute`; `master` is the optimizer's own copy, none where it has
    none.
    """

    compute: Float = "bf16"
    reduce: Float = "fp32"
    """Gradients add up, and are reduced, in this."""
    master: Float | None = "fp32"
    matmul: Literal["fp8", "fp4"] | None = None
    """A narrower dtype for matrix products alone."""
    scaling: Literal["tensors", "rows"] = "tensors"
    """What shares a scale in these: a tensor or a small block of it, or a row, which costs more casts and keeps more of
    unlike numbers."""

    @property
    def mixed(self) -> bool:
        """True where parameters rest in another dtype than they are computed with."""
        return self.master is not None and self.master != self.compute


class Kept(NamedTuple):
    """What an optimizer keeps of a parameter from one step to the next."""

    whole: int = 0
    """Tensors of the parameter's size."""
    means: bool = False
    """A number for each row and one for each column of a matrix."""


Kind = Literal["matrix", "table", "vector"]
"""What a parameter is to an optimizer: `model.tensors.Kind`, which says more."""
_EVERY: tuple[Kind, ...] = get_args(Kind)

_KEPT: dict[str, dict[Kind, Kept]] = {
    "adamw": dict.fromkeys(_EVERY, Kept(2)),
    "sgd": dict.fromkeys(_EVERY, Kept()),
    "sgd with momentum": dict.fromkeys(_EVERY, Kept(1)),
    "lion": dict.fromkeys(_EVERY, Kept(1)),
    # Shazeer and Stern 2018, section 3 and algorithm 5: vectors keep their second moments whole.
    "adafactor": {"matrix": Kept(means=True), "table": Kept(means=True), "vector": Kept(1)},
    # Jordan 2024; Liu 2025, section 2.2: hidden matrices keep a momentum, AdamW steps the rest.
    "muon": {"matrix": Kept(1), "table": Kept(2), "vector": Kept(2)},
}
"""What each optimizer keeps of each kind of parameter."""


class Optimizer(Record):
    """The optimizer with its settings; `state` is the dtype of what it keeps."""

    name: Literal["adamw", "sgd", "lion", "adafactor", "muon"] = "adamw"
    learning_rate: PositiveFloat = 3e-4
    betas: tuple[NonNegativeFloat, NonNegativeFloat] = (0.9, 0.95)
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    momentum: NonNegativeFloat = 0.0
    state: Float = "fp32"

    def kept(self, kind: Kind) -> Kept:
        """What it keeps of a hidden matrix, of another one (embeddings, heads), and of a vector.

        >>> [Optimizer(name="muon").kept(kind).whole for kind in ("matrix", "table", "vector")]
        [1, 2, 2]
        """
        momentum = self.name == "sgd" and self.momentum > 0
        return _KEPT["sgd with momentum" if momentum else self.name][kind]

    @property
    def keeps_nothing(self) -> bool:
        """True of plain descent."""
        return not any(any(kept) for kept in map(self.kept, _EVERY))


class Lora(Record):
    """Low-rank adapters on the linear operators whose path ends in one of `targets`."""

    rank: PositiveInt
    alpha: PositiveFloat = 16.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("q_proj", "v_proj")


class Trainable(Record):
    """Which parameters learn: all, all but `frozen` (spans of layers), or adapters alone."""

    frozen: tuple[str, ...] = ()
    lora: Lora | None = None


class Loss(Record):
    """The loss and how it is normalised: over the tokens of the whole global batch."""

    kind: Literal["causal_lm", "masked_lm", "seq2seq", "classification"] = "causal_lm"
    chunks: PositiveInt = 1
    """Pieces of the sequence whose logits exist at one time."""


class Recipe(Document):
    """What is asked for: batch, sequence, precision, optimizer, trainable parts, loss."""

    noun: ClassVar[str] = "recipe"
    meshwright_recipe: Literal[1] = 1
    global_batch: PositiveInt
    """Samples per optimizer step."""
    sequence: PositiveInt | dict[str, PositiveInt]
    """Positions per sample, for each stream where they differ."""
    precision: Precision = Precision()
    optimizer: Optimizer = Optimizer()
    clip_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this global norm; none: not clipped."""
    trainable: Trainable = Trainable()
    loss: Loss = Loss()
    seed: NonNegativeInt = 0
    micro_batches: PositiveInt | None = None
    """Fixed where the model takes statistics over the batch; otherwise the plan's to choose."""

    def length(self, stream: str, fixed: int | None = None) -> int | None:
        """Positions per sample of a stream: the model's own where it fixes them, or this recipe's; none if neither
        says.
        """
        if fixed is not None:
            return fixed
        return self.sequence.get(stream) if isinstance(self.sequence, dict) else self.sequence
