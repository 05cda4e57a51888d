"""What was recorded of one forward pass: tensors as values, and the steps that made them from each other."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Value:
    """One tensor, as one step left it."""

    shape: Shape
    step: "Step | None" = None
    """Who made it; none for parameters, buffers, inputs and constants."""
    parameter: str | None = None
    """The parameter that it is, or is a view or a cast of."""
    weights: frozenset[str] = frozenset()
    """Parameters that it is made of, where nothing else went in."""
    inputs: frozenset[str] = frozenset()
    """The model's inputs that it depends on."""
    learns: bool = False
    """True where a gradient passes through it."""
    counted: bool = False
    """True where it was made of counting alone: positions."""
    causal: bool = False
    """True where it is, or is made of, a mask that hides what comes later."""
    window: int | None = None
    """How many positions such a mask leaves, where it says."""

    @property
    def numel(self) -> int:
        """Numbers in it."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_weight(self) -> bool:
        """True for what depends on parameters and on no input."""
        return bool(self.weights) and not self.inputs


@dataclass(slots=True, eq=False)
class Call:
    """A call whose meaning is known, whatever it does inside: a function of torch, or a module by its kind."""

    name: str
    module: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    output: Value | None = None
    serial: int = 0
    """Where it ended: the number of steps before."""

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """One of its arguments, given by place or by name."""
        return self.arguments[place] if len(self.arguments) > place else self.keywords.get(name, default)

    @property
    def values(self) -> list[Value]:
        """Tensors among its arguments."""
        return [each for each in (*self.arguments, *self.keywords.values()) if isinstance(each, Value)]


@dataclass(slots=True, eq=False)
class Step:
    """One operation of torch."""

    serial: int
    op: str
    arguments: tuple[Any, ...]
    """As torch got them, tensors as values."""
    values: tuple[Value, ...]
    """The tensors among them, of lists too."""
    module: str
    """Path of the innermost module that ran."""
    call: Call | None
    """The call that it is a piece of."""
    flops: int
    outputs: tuple[Value, ...] = ()

    @property
    def output(self) -> Value:
        """Its first output."""
        return self.outputs[0]


@dataclass
class Tape:
    """A forward pass in order."""

    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    forward_flops: int = 0
    backward_flops: int | None = None
    """None where the backward pass could not be run."""
    outputs: tuple[Value, ...] = ()
    """What the model returned."""
    dropping: list[tuple[int, int, float]] = field(default_factory=list)
    """From step to step: attention whose weights are dropped inside of torch, with the probability."""

    def users(self) -> dict[Value, list[Step]]:
        """The steps that read each value."""
        found: dict[Value, list[Step]] = {}
        for step in self.steps:
            for value in step.values:
                found.setdefault(value, []).append(step)
        return found


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


VIEWS = words(
    "view _unsafe_view reshape _reshape_alias t transpose permute slice select unsqueeze squeeze expand split "
    "split_with_sizes unsafe_split unsafe_chunk chunk unbind alias detach _to_copy clone as_strided view_as lift_fresh "
    "movedim contiguous unfold narrow diagonal"
)
"""Operations that put the same numbers another way."""

ELEMENTWISE = VIEWS | words(
    "add add_ sub sub_ rsub mul mul_ div div_ where masked_fill masked_fill_ neg clamp clamp_min clamp_max tanh copy_ "
    "nan_to_num maximum minimum pow exp constant_pad_nd native_dropout sigmoid"
)
SOFTMAX = frozenset({"_softmax", "_safe_softmax", "softmax", "_log_softmax"})


def sources(value: Value, through: frozenset[str], limit: int = 60) -> Iterator[Value]:
    """The value, and those that it was made of by operations of `through` alone, nearest first."""
    waiting, seen = [value], {value}
    while waiting and len(seen) < limit:
        value = waiting.pop(0)
        yield value
        if value.step is not None and value.step.op in through:
            fresh = [each for each in value.step.values if each not in seen]
            seen.update(fresh)
            waiting += fresh
