"""ModelSpec: what is trained, as named layers with their parts and operators. Torch-free."""

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from meshwright.document import Document, Record
from meshwright.errors import did_you_mean
from meshwright.explain import LAYER_PATTERN, WORD_PATTERN, misplaced
from meshwright.model.operators import Attention, Contrast, Dropout, Embedding, Experts, Norm, Operator
from meshwright.model.spans import MAX_LAYERS, SPAN_PATTERN, checked_span, parse_span, span_names
from meshwright.units import Flag, PositiveInt

Span = Annotated[
    str,
    AfterValidator(checked_span),
    WithJsonSchema({"type": "string", "pattern": SPAN_PATTERN, "examples": ["embed", "decoder.0-11"]}),
]
LayerName = Annotated[str, Field(pattern=LAYER_PATTERN)]


class Part(Record):
    """A piece of a layer that a plan may treat by itself: `attention`, `mlp`, `experts`."""

    name: Annotated[str, Field(pattern=WORD_PATTERN)]
    operators: tuple[Operator, ...]
    parallel: Flag = False
    """True where it reads what the part before it reads, not what that puts out (attention and MLP side by side). An
    operator of it that comes before any norm reads what the other part's norm put out.
    """

    @cached_property
    def parameters(self) -> int:
        """Trainable numbers."""
        return sum(operator.parameters() for operator in self.operators)

    @cached_property
    def experts(self) -> Experts | None:
        """Its routed experts, where it has any."""
        return next((operator for operator in self.operators if isinstance(operator, Experts)), None)


class LayerStack(Record):
    """One layer, or a run of equal ones (`decoder.0-31`), as the document writes it."""

    span: Span
    modules: tuple[str, ...]
    """Module paths that it covers; `{i}` stands for the layer's index."""
    reads: tuple[LayerName, ...] = ()
    """The layers whose output the first of the run takes; each later one takes the one before it."""
    side: tuple[LayerName, ...] = ()
    """Layers whose output every one of the run takes besides (a decoder's encoder)."""
    stream: str = "tokens"
    """Which sequence it works on; its length is the recipe's, or the model's own."""
    output: PositiveInt
    """Values it hands on, for each position of its stream."""
    parts: tuple[Part, ...]

    @cached_property
    def parameters(self) -> int:
        """Trainable numbers of one layer."""
        return sum(part.parameters for part in self.parts)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """All operators, in order."""
        return tuple(operator for part in self.parts for operator in part.operators)


class Layer(Record):
    """One layer: the planning unit. Equal layers share one `stack`."""

    name: LayerName
    index: int | None
    reads: tuple[LayerName, ...]
    stack: LayerStack

    @property
    def modules(self) -> tuple[str, ...]:
        """Module paths that it covers."""
        return tuple(self.module_path(path) for path in self.stack.modules)

    @property
    def parameters(self) -> int:
        """Trainable numbers."""
        return self.stack.parameters

    def module_path(self, template: str) -> str:
        """A path with the layer's index put in: 'model.layers.{i}.mlp' → 'model.layers.7.mlp'."""
        return template if self.index is None else template.replace("{i}", str(self.index))


class Tie(Record):
    """One parameter under several names. The first is the owner; the others are copies."""

    name: str
    owner: str
    copies: Annotated[tuple[str, ...], Field(min_length=1)]


class Stream(Record):
    """A sequence of positions that layers work on: tokens, audio frames, image patches."""

    length: PositiveInt | None = None
    """Positions per sample where the model fixes it; otherwise the recipe says it."""
    limit: PositiveInt | None = None
    """Positions that the model's tables reach at most (learned positions); none: it sets no limit."""


class ModelSpec(Document):
    """A model as a planner sees it: layers in forward order, their graph, parts, operators and tied parameters."""

    noun: ClassVar[str] = "model"
    provenance: ClassVar[frozenset[str]] = frozenset({"source"})
    meshwright_model: Literal[1] = 1
    name: str
    family: str
    source: str = ""
    """Where the facts come from."""
    streams: dict[str, Stream] = Field(default={"tokens": Stream()})
    stacks: Annotated[tuple[LayerStack, ...], Field(min_length=1)]
    """The layers in forward order, runs of equal ones folded."""
    shared: tuple[str, ...] = ()
    """Modules without parameters that every stage keeps (rotary tables)."""
    ties: tuple[Tie, ...] = ()

    @model_validator(mode="after")
    def _graph_is_sound(self) -> "ModelSpec":
        seen: set[str] = set()
        for place, stack in enumerate(self.stacks):
            if stack.stream not in self.streams:
                hint = did_you_mean(stack.stream, self.streams)
                raise misplaced(("stacks", place, "stream"), f"'{stack.stream}' is not named in streams; {hint}")
            for read in (*stack.reads, *stack.side):
                if read not in seen:
                    raise misplaced(
                        ("stacks", place), f"layer '{stack.span}' reads '{read}', which is no layer before it"
                    )
            names = span_names(stack.span)
            if len(seen) + len(names) > MAX_LAYERS:
                raise misplaced(("stacks", place, "span"), f"the model has more than {MAX_LAYERS:,} layers")
            twice = next((name for name in names if name in seen), None)
            if twice:
                raise misplaced(("stacks", place, "span"), f"layer '{twice}' stands twice")
            seen.update(names)
            _parts_are_sound(stack, place, self.streams)
        return self

    @model_validator(mode="after")
    def _ties_are_placed(self) -> "ModelSpec":
        for place, tie in enumerate(self.ties):
            copies = ((("copies", at), name) for at, name in enumerate(tie.copies))
            for where, parameter in ((("owner",), tie.owner), *copies):
                if self.layer_of(parameter) is None:
                    hint = did_you_mean(parameter.rpartition(".")[0], self._layer_of_module)
                    raise misplaced(("ties", place, *where), f"no layer covers '{parameter}'; {hint}")
        return self

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer, in forward order."""
        return tuple(layer for stack in self.stacks for layer in _expand(stack))

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """Layers by name."""
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def parameters(self) -> int:
        """Trainable numbers; a tied parameter counts once."""
        return sum(stack.parameters * len(span_names(stack.span)) for stack in self.stacks)

    @cached_property
    def active_parameters(self) -> int:
        """Trainable numbers that one position uses: of routed experts, `top_k` of `count`."""
        return self.parameters - sum(
            len(span_names(stack.span)) * part.experts.idle_parameters()
            for stack in self.stacks
            for part in stack.parts
            if part.experts
        )

    @property
    def batch_statistics(self) -> bool:
        """True where a norm takes statistics over the batch, or the loss compares samples: the number of micro-batches
        then changes the model.
        """
        return any(
            isinstance(op, Contrast) or (isinstance(op, Norm) and op.kind == "batch")
            for stack in self.stacks
            for op in stack.operators
        )

    @cached_property
    def sides(self) -> frozenset[str]:
        """Layers that others look at besides the ones before them: of a model with an encoder and a decoder, the
        encoder's last.
        """
        return frozenset(side for stack in self.stacks for side in stack.side)

    @cached_property
    def unused(self) -> frozenset[str]:
        """Layers whose output the last layer does not see, however far on: they run, but get no gradient."""
        seen = {self.layers[-1].name}
        for layer in reversed(self.layers):
            if layer.name in seen:
                seen.update(layer.reads)
        return frozenset(self.by_name) - seen

    @property
    def vocabulary(self) -> int | None:
        """Rows of its first token embedding; none where it has no tokens. Tables of positions are not cut."""
        tables = [op for stack in self.stacks for op in stack.operators if isinstance(op, Embedding)]
        return next((op.rows for op in sorted(tables, key=lambda op: op.split is None)), None)

    @property
    def attention_dropout(self) -> float:
        """The largest dropout probability on attention weights."""
        found = [
            op for stack in self.stacks for op in stack.operators if isinstance(op, Dropout) and op.of == "attention"
        ]
        return max((op.probability for op in found), default=0.0)

    def layer_of(self, parameter: str) -> str | None:
        """The layer whose modules hold a parameter, by its name; none where no layer does."""
        path = parameter
        while path and path not in self._layer_of_module:
            path = path.rpartition(".")[0]
        return self._layer_of_module.get(path)

    @cached_property
    def _layer_of_module(self) -> dict[str, str]:
        return {path: layer.name for layer in self.layers for path in layer.modules}

    @cached_property
    def tied_layers(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """For each tied parameter, the layer of its owner and those of its copies."""
        found = []
        for tie in self.ties:
            owner, *copies = (self.layer_of(parameter) for parameter in (tie.owner, *tie.copies))
            if owner is not None:
                found.append((owner, tuple(copy for copy in copies if copy is not None)))
        return tuple(found)

    def part_names(self, layer: str) -> tuple[str, ...]:
        """Names of a layer's parts."""
        return tuple(part.name for part in self.by_name[layer].stack.parts)

    def attentions(self, layer: str) -> list[Attention]:
        """The attention cores of a layer."""
        return [op for op in self.by_name[layer].stack.operators if isinstance(op, Attention)]

    @cached_property
    def has_relative_positions(self) -> bool:
        """Whether attention of some layer has a bias for each distance (T5)."""
        return any(core.relative for core in self._attentions())

    @cached_property
    def is_causal(self) -> bool:
        """Whether all its attention looks back alone, within its own sequence and without a bias for each distance."""
        return all(core.causal and not (core.cross or core.relative) for core in self._attentions())

    def _attentions(self) -> Iterator[Attention]:
        return (op for stack in self.stacks for op in stack.operators if isinstance(op, Attention))


def _parts_are_sound(stack: LayerStack, place: int, streams: dict[str, Stream]) -> None:
    """Parts have names of their own, and the streams that operators name exist. Raises a misplaced error."""
    names = [part.name for part in stack.parts]
    for at, part in enumerate(stack.parts):
        if part.name in names[:at]:
            raise misplaced(("stacks", place, "parts", at, "name"), f"'{part.name}' stands twice in '{stack.span}'")
        for inside, operator in enumerate(part.operators):
            for field in ("stream", "cross"):
                named = vars(operator).get(field)
                if named is not None and named not in streams:
                    where = ("stacks", place, "parts", at, "operators", inside, field)
                    raise misplaced(where, f"'{named}' is not named in streams; {did_you_mean(named, streams)}")


def _expand(stack: LayerStack) -> list[Layer]:
    base, numbers = parse_span(stack.span)
    if numbers is None:
        return [Layer(name=base, index=None, reads=(*stack.reads, *stack.side), stack=stack)]
    layers = []
    for index in numbers:
        before = stack.reads if index == numbers[0] else (f"{base}.{index - 1}",)
        layers.append(Layer(name=f"{base}.{index}", index=index, reads=(*before, *stack.side), stack=stack))
    return layers
