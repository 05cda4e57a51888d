"""What one rank does of a layer: its operators, cut down to the rank's share.

A rank's share of an operator is an operator: a Linear that is cut by output has fewer outputs, an Attention fewer
heads. A rank's parameters and FLOPs then come from the same functions as the model's.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from meshwright.cost.reads import Reads
from meshwright.cost.ways import Ways
from meshwright.document import Record
from meshwright.model.operators import (
    Attention,
    Convolution,
    Dropout,
    Embedding,
    Experts,
    Linear,
    Loss,
    MatMul,
    Norm,
    Operator,
    Parameter,
    Pool,
    Rotary,
    Router,
    Scan,
    work_of,
)
from meshwright.model.spec import Part
from meshwright.model.work import Work

if TYPE_CHECKING:  # describing a model starts without the documents of plans and recipes
    from meshwright.recipe.spec import Lora

_Kind = TypeVar("_Kind", bound=Record)


class Extent(NamedTuple):
    """What a layer works on: a micro-batch's samples over all ranks, each stream's positions, and its own stream."""

    samples: float
    lengths: Mapping[str, int]
    stream: str
    crowding: float = 1.0
    """Positions of the busiest expert rank over the mean."""


class Learning(NamedTuple):
    """What of a layer learns, and whether what it reads wants a gradient."""

    trains: bool = True
    fed: bool = True
    lora: "Lora | None" = None
    holds_copies: bool = False
    """True where a tied weight is a copy of its own here, because its owner is on another group."""


class Share(NamedTuple):
    """One operator as one rank has it."""

    operator: Operator
    work: Work
    learns: bool
    passes: bool
    """True where a gradient goes on to its input."""
    fresh: bool = True
    """False where another operator keeps the same input already."""
    dropped: bool = False
    """True where dropout works on what it puts out (of an attention core: on its weights)."""
    inside: bool = False
    """True between a column and a row cut, where each tensor rank holds a slice of the width."""
    enters: bool = False
    """True where its input is the same on all tensor ranks, so that their gradients for it add up."""
    leaves: bool = False
    """True where its output is the sum over the tensor ranks."""
    scattered: int = 1
    """Ranks that each held a run of its input's positions before it was gathered."""
    left: int = 1
    """Ranks that each keep a run of the positions of what it puts out."""
    keys: float = 0.0
    """Positions per sample whose keys and values this rank holds, for an attention core."""
    partial: float = 0.0
    """Parameters that all tensor ranks hold, each with a part of their gradient."""
    copied: float = 0.0
    """Parameters of KV heads that several tensor ranks hold, each with a part of their gradient."""
    fused: bool = False
    """True where queries, keys and values of an attention core are slices of what one matrix put out."""
    turned: float = 0.0
    """The share of a head that was rotated or normalised before an attention core: its queries and keys are tensors of
    their own then.
    """
    made: int = 0
    """Width of what the matrix before it put out, where its input is a slice of that width."""
    slice_of: float = 0.0
    """Positions per sample of the tensor that its input is a slice of, where it works on a few of them alone."""
    crowding: float = 1.0
    """Of experts over several ranks: positions that come to the busiest, which `work` has, over those that it sends."""
    tensor: int = 1
    """Tensor ranks."""
    matrix: int = 0
    """Of matrices: how many the layer has up to this one."""

    @property
    def sent(self) -> float:
        """Positions that the rank itself has to work on, wherever they go.

        >>> experts = Experts(count=4, top_k=2, hidden=8, ffn=24)
        >>> Share(experts, Work(1, 24, 24), learns=True, passes=True, crowding=1.5).sent
        16.0
        """
        return self.work.positions / self.crowding


def elements(operator: Operator, work: Work) -> float:
    """Numbers that an operator puts out.

    >>> elements(Linear(inputs=8, outputs=3), Work(samples=2, length=5, context=5))
    30
    """
    width: float
    match operator:
        case Linear() | Convolution() | MatMul():
            width = operator.outputs
        case Attention():
            width = operator.heads * (operator.value_dim or operator.head_dim)
        case Dropout(of="attention"):
            width = work.context * operator.width
        case Norm(heads=int(count)) | Scan(heads=int(count)):
            width = count * operator.width
        case Loss():
            width = 1
        case Router():
            width = operator.experts
        case Experts():
            width = operator.hidden
        case _:
            width = vars(operator).get("width", 0)
    return work.positions * width


def layer_shares(parts: Sequence[tuple[Part, Ways]], extent: Extent, learning: Learning) -> list[list[Share]]:
    """The operators of each part as one rank has them, in order. Each part has the ways of its own row."""
    return list(map(list, shares_of(tuple(parts), extent._replace(lengths=_Lengths(extent.lengths)), learning)))


class _Lengths(dict[str, int]):
    """Lengths of streams that may be part of a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


@lru_cache(maxsize=4096)  # a search tries one model with the same ways again and again
def shares_of(
    parts: tuple[tuple[Part, Ways], ...], extent: Extent, learning: Learning
) -> tuple[tuple[Share, ...], ...]:
    flows, found, reads = learning.fed, [], Reads()
    for part, ways in parts:
        reads.next_part(part.operators, parallel=part.parallel)
        walk = _Walk(part.operators, ways, extent, learning, flows=flows, reads=reads)
        found.append(tuple(walk))
        flows = walk.flows
    return tuple(found)


class _Walk:
    """Goes through the operators of a part in order, and knows where it is."""

    def __init__(
        self,
        operators: tuple[Operator, ...],
        ways: Ways,
        extent: Extent,
        learning: Learning,
        *,
        flows: bool,
        reads: Reads,
    ) -> None:
        self.operators, self.ways, self.extent, self.learning = operators, ways, extent, learning
        self.flows = flows
        """True where a gradient is wanted for what comes next."""
        self.reads = reads
        self.entered: set[str | None] = set()
        """The streams that entered since then: keys and values may look at another (cross-attention)."""
        self.inside = False
        """True between a column and a row cut, where each tensor rank holds a slice of the width."""
        self.made = 0
        """Width that the last matrix put out."""
        self.just_made = False
        """True right after it."""
        self.turned = 0.0
        """The share of its heads that was normalised or rotated since."""
        self.core = next((operator for operator in operators if isinstance(operator, Attention)), None)
        self.looked_at = {operator.cross for operator in operators if isinstance(operator, Attention)}
        self.adapted = learning.lora.targets if learning.lora and learning.trains else ()

    def __iter__(self) -> Iterator[Share]:
        for place, operator in enumerate(self.operators):
            following = self.operators[place + 1] if place + 1 < len(self.operators) else None
            dropped = isinstance(following, Dropout) and following.probability > 0
            yield from self._adapted(operator, self._share(operator, dropped))

    def _share(self, operator: Operator, dropped: bool) -> Share:
        tensor, scattered = self.ways.tensor, self.ways.scattered
        learns, fresh = self._learns(operator), self._is_fresh(operator)
        cut = self._cut(operator)
        experts, split = isinstance(operator, Experts), vars(operator).get("split")
        enters = experts or (split == "column" and operator.stream not in self.entered)
        leaves = experts or split in ("row", "vocabulary")
        whole = not (self.inside or enters or leaves)
        crowding = self.extent.crowding if isinstance(operator, Experts) and self.ways.experts > 1 else 1.0
        work = self._work(operator, whole)
        share = Share(
            operator=cut,
            work=work._replace(samples=work.samples * crowding),
            learns=learns,
            passes=self.flows,
            fresh=fresh,
            dropped=dropped,
            inside=self.inside and tensor > 1,
            enters=enters and tensor > 1,
            leaves=leaves and tensor > 1,
            scattered=scattered if enters else 1,
            left=scattered if leaves else 1,
            keys=work.length if vars(operator).get("block") else work.context / self.ways.cp,
            partial=self._partial(cut, whole) if learns else 0.0,
            copied=self._copied(operator) if learns else 0.0,
            fused=isinstance(cut, Attention) and self.made == _fused_width(cut),
            turned=self.turned,
            made=self._cut_from(cut),
            slice_of=self._slice_of(operator),
            crowding=crowding,
            tensor=tensor,
            matrix=self.reads.count(operator),
        )
        self._note(cut)
        self.entered = set() if leaves else self.entered | ({operator.stream} if enters else set())
        self.inside = (self.inside or enters) and not leaves
        self.flows = self.flows or learns
        return share

    def _work(self, operator: Operator, whole: bool) -> Work:
        ways, work = self.ways, work_of(operator, self.extent.samples, self.extent.lengths, self.extent.stream)
        around = isinstance(operator, Attention) or (isinstance(operator, Dropout) and operator.of == "attention")
        divided = ways.cp if around else ways.cp * ways.ulysses * (ways.scattered if whole else 1)
        return work._replace(samples=work.samples / ways.batch, length=work.length / divided)

    def _cut(self, operator: Operator) -> Operator:
        """The rank's share of an operator."""
        tensor, heads = self.ways.tensor, self.ways.tensor * self.ways.ulysses
        sizes: dict[str, Any] = {}
        match operator:
            case Linear(split="column"):
                sizes = {"outputs": self._column(operator)}
            case Linear(split="row"):
                sizes = {"inputs": _divided(operator.inputs, tensor)}
            case Embedding(split="vocabulary"):
                sizes = {"rows": _divided(operator.rows, tensor)}
            case Attention():
                kv_heads = _divided(operator.kv_heads, min(heads, operator.kv_heads))
                sizes = {"heads": _divided(operator.heads, heads), "kv_heads": kv_heads}
            case Dropout(of="attention"):
                sizes = {"width": _divided(operator.width, heads)}
            case Experts():
                sizes = {"count": _divided(operator.count, self.ways.experts), "ffn": _divided(operator.ffn, tensor)}
            case _ if self.inside:
                sizes = _slice(operator, tensor)
        if self.learning.holds_copies and vars(operator).get("tied"):
            sizes["tied"] = False
        return _copy(operator, **sizes)

    def _column(self, linear: Linear) -> int:
        """Outputs of a column cut. Ranks beyond the number of KV heads hold copies of these, not slices."""
        tensor, core = self.ways.tensor, self.core
        kv = core.kv_heads * core.head_dim if core else 0
        kv_ways = min(tensor, core.kv_heads) if core else tensor
        segments = linear.segments or (linear.outputs,)
        return sum(_divided(width, kv_ways if width == kv else tensor) for width in segments)

    def _copied(self, operator: Operator) -> float:
        """Numbers of the KV heads that a rank holds as a copy."""
        core = self.core
        if core is None or core.kv_heads >= self.ways.tensor or vars(operator).get("split") != "column":
            return 0.0
        assert isinstance(operator, Linear)
        kv = [width for width in operator.segments or (operator.outputs,) if width == core.kv_heads * core.head_dim]
        return float(sum(width // core.kv_heads for width in kv) * (operator.inputs + operator.bias))

    def _partial(self, cut: Operator, whole: bool) -> float:
        """Of what all tensor ranks hold: norms that work on a rank's own heads, and under `tp+sp` what sees a run of
        the positions (Korthikanti 2022, section 4.2.2).
        """
        if self.inside and self.ways.tensor > 1 and isinstance(cut, Norm) and cut.heads:
            return float(cut.parameters())
        if self.ways.scattered == 1:
            return 0.0
        if whole:
            return float(cut.parameters())
        return float(cut.outputs) if isinstance(cut, Linear) and cut.split == "row" and cut.bias else 0.0

    def _learns(self, operator: Operator) -> bool:
        trains = self.learning.trains and self.learning.lora is None
        return trains and bool(operator.parameters() or vars(operator).get("tied"))

    def _is_fresh(self, operator: Operator) -> bool:
        if isinstance(operator, Linear) and operator.stream is not None and operator.stream in self.looked_at:
            return False  # an encoder's output, which all layers that look at it keep together
        return self.reads.is_fresh(operator, keeps=self._learns(operator) or self._adapts(operator))

    def _cut_from(self, cut: Operator) -> int:
        sliced = isinstance(cut, Linear | Convolution) and self.just_made and cut.inputs < self.made
        return self.made if sliced else 0

    def _slice_of(self, operator: Operator) -> float:
        """What works on one position out of a stream reads a slice of it: of images or frames the first, of tokens a
        copy, because their last one has another place in each sample. A norm or pooling makes a tensor of its own.
        """
        if not isinstance(operator, Linear | Norm) or operator.positions is None or self.extent.stream == "tokens":
            return 0.0
        before = self.operators[: self.operators.index(operator)]
        made = any(isinstance(other, Norm | Pool) and other.positions == operator.positions for other in before)
        length = self.extent.lengths[operator.stream or self.extent.stream]
        return float(length) if operator.positions < length and not made else 0.0

    def _note(self, cut: Operator) -> None:
        self.just_made = isinstance(cut, Linear)
        if isinstance(cut, Linear):
            self.made, self.turned = cut.outputs, 0.0
        elif isinstance(cut, Norm) and cut.heads:
            self.turned = 1.0
        elif isinstance(cut, Rotary):
            core = self.core
            whole = (core.heads + core.kv_heads) * core.head_dim if core else cut.width
            self.turned = cut.width * (self.ways.tensor if self.inside else 1) / whole

    def _adapts(self, operator: Operator) -> bool:
        ends = self.adapted if isinstance(operator, Linear) else ()
        return any(operator.path == end or operator.path.endswith(f".{end}") for end in ends)

    def _adapted(self, operator: Operator, base: Share) -> Iterator[Share]:
        """The share, and after it the low-rank adapter of a Linear that has one (Hu 2021): down to the rank, and up."""
        yield base
        if not self._adapts(operator) or not isinstance(base.operator, Linear) or self.learning.lora is None:
            return
        rank, cut = self.learning.lora.rank, self.ways.tensor > 1 and isinstance(operator, Linear) and operator.split
        bare: dict[str, Any] = {"bias": False, "split": None, "segments": (), "tied": False}
        down = _copy(base.operator, outputs=rank, **bare)
        up = _copy(base.operator, inputs=rank, **bare)
        same = base._replace(learns=True, enters=False, leaves=False)
        yield same._replace(operator=down, partial=float(down.parameters()) if cut == "column" else 0.0)
        yield same._replace(
            operator=up, passes=True, fresh=True, partial=float(up.parameters()) if cut == "row" else 0.0
        )
        self.flows = True


def _slice(operator: Operator, tensor: int) -> dict[str, Any]:
    """The sizes of what one of so many ranks holds of an operator between a column and a row cut."""
    match operator:
        case Convolution() if operator.groups == operator.inputs:  # each channel by itself
            return {name: _divided(operator.inputs, tensor) for name in ("inputs", "outputs", "groups")}
        case Parameter():
            first, *others = operator.shape
            return {"shape": (_divided(first, tensor), *others)}
        case Loss():
            return {"classes": _divided(operator.classes, tensor)}
        case _ if hasattr(operator, "width"):
            cut = "heads" if getattr(operator, "heads", None) else "width"  # what works head by head
            return {cut: _divided(getattr(operator, cut), tensor)}
    return {}


def _fused_width(core: Attention) -> int:
    """Queries, keys and values of a position together."""
    return core.heads * core.head_dim + core.kv_heads * (core.head_dim + (core.value_dim or core.head_dim))


def _divided(number: int, ways: int) -> int:
    """A size over the ranks; what does not divide is padded."""
    return -(-number // ways)


def _copy(operator: _Kind, **sizes: Any) -> _Kind:
    changed = {name: size for name, size in sizes.items() if getattr(operator, name) != size}
    return operator.model_copy(update=changed) if changed else operator
