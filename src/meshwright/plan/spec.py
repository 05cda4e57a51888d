"""Plan: the artefact. Which group of devices works on which layers, and what each layer does with each mesh axis."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from meshwright.cluster.spec import MAX_DEVICES
from meshwright.document import Document, Record
from meshwright.errors import did_you_mean
from meshwright.explain import WORD_PATTERN, misplaced
from meshwright.model.spans import MAX_LAYERS, parse_span, span_names
from meshwright.model.spec import Span
from meshwright.plan.ranks import RANKS_PATTERN, format_ranks, parse_ranks
from meshwright.plan.words import Kernels, Schedule
from meshwright.units import Flag, NonNegativeInt, PositiveFloat, PositiveInt

Split = Literal["dp", "cp", "ulysses", "tp", "tp+sp", "ep", "copy"]
State = Literal["zero1", "zero2", "zero3"]
SPLITS: tuple[str, ...] = get_args(Split)
STATES: tuple[str, ...] = get_args(State)
STATEFUL: frozenset[str] = frozenset({"dp", "cp", "ulysses", "copy"})
"""Splits under which ranks hold equal parameters, so that a state may shard them."""

Overlap = Literal["gathers", "gradients", "context", "tensor", "weights", "experts"]
Axis = Annotated[str, Field(pattern=WORD_PATTERN)]
GroupName = Annotated[str, Field(pattern=WORD_PATTERN)]


class Role(NamedTuple):
    """What a layer does with one mesh axis: `split`, and how equal parameters are sharded over it."""

    split: str
    state: str | None = None

    def __str__(self) -> str:
        return f"{self.split}/{self.state}" if self.state else self.split


def parse_role(value: Any) -> Role:
    """'dp/zero3' → Role('dp', 'zero3'). Raises ValueError with the nearest role."""
    if isinstance(value, Role):
        return value
    if not isinstance(value, str):
        raise ValueError("a role is text: 'dp/zero3', 'tp'")
    split, slash, state = value.partition("/")
    if split not in SPLITS:
        raise ValueError(f"'{split}' is no split; {did_you_mean(split, SPLITS)}")
    if slash and state not in STATES:
        raise ValueError(f"'{state}' is no state; {did_you_mean(state, STATES)}")
    return Role(split, state or None)


ROLES = tuple(
    f"{split}{state}" for split in SPLITS for state in ("", *(f"/{name}" for name in STATES if split in STATEFUL))
)
"""Every role that has a meaning, as a plan writes it."""
RoleText = Annotated[
    Role,
    BeforeValidator(parse_role),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "enum": list(ROLES)}),
]


def _parse_devices(value: Any) -> Any:
    if isinstance(value, str):
        return parse_ranks(value)
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


def _show_devices(devices: tuple[int, ...]) -> str:
    return format_ranks(devices)


_DEVICE = {"type": "integer", "minimum": 0}
_DEVICES = {"type": "string", "pattern": RANKS_PATTERN, "examples": ["0-7", "0,2,4", "0-14:2", "0-3*4+8"]}
Devices = Annotated[
    tuple[Annotated[NonNegativeInt, Field(lt=MAX_DEVICES)], ...],
    BeforeValidator(_parse_devices),
    PlainSerializer(_show_devices, return_type=str),
    Field(min_length=1, max_length=MAX_DEVICES),
    WithJsonSchema({"anyOf": [_DEVICE, _DEVICES, {"type": "array", "items": _DEVICE, "minItems": 1}]}),
]


Saved = Literal["matmul", "half-matmul", "qkv", "attention", "collective"]


class Save(Record):
    """Recompute all but what these operators put out. `half-matmul`: every second matrix, beginning with the first, as
    torchtitan's selective recompute does. `qkv`: the matrices that make queries, keys and values (MaxText's
    `save_qkv_proj`).
    """

    save: tuple[Saved, ...]

    def __str__(self) -> str:
        """As a plan writes it."""
        return f"{{save: [{', '.join(self.save)}]}}"


class Repeat(Record):
    """Recompute what these operators put out, and keep the rest: norms, activations, and the matrices that make
    queries, keys and values of MLA's latents (Megatron-Core's `--recompute-modules layernorm moe_act mla_up_proj`).
    """

    repeat: Annotated[tuple[Literal["norm", "activation", "up-projection"], ...], Field(min_length=1)]

    def __str__(self) -> str:
        """As a plan writes it."""
        return f"{{repeat: [{', '.join(self.repeat)}]}}"


Recompute = Literal["none", "full", "selective"] | Save | Repeat


class Offload(Record):
    """What of a layer rests in the host's memory."""

    optimizer: Literal["cpu"] | None = None
    parameters: Literal["cpu"] | None = None
    activations: Literal["cpu"] | None = None


class Group(Record):
    """Devices that work together: an ordered list, reshaped row-major to named axes (the last varies fastest)."""

    devices: Devices
    mesh: Annotated[dict[Axis, PositiveInt], Field(max_length=16)]

    def __eq__(self, other: object) -> bool:
        """Equal devices under an equal mesh, whose order counts: it says which axis varies fastest."""
        return super().__eq__(other) and list(self.mesh) == list(getattr(other, "mesh", ()))

    def __hash__(self) -> int:
        return hash((self.devices, *self.mesh.items()))

    @property
    def size(self) -> int:
        """Devices."""
        return len(self.devices)

    @property
    def mesh_size(self) -> int:
        """The product of the axes."""
        return math.prod(self.mesh.values())


class Row(Record):
    """The roles of a span of layers, or of one part of them, which then differs from the rest of its layers.

    Every axis of the group has exactly one role (rule `every-axis-has-a-role`), so the order of the axes is the mesh's.
    """

    span: Span
    part: str | None = None
    roles: dict[Axis, RoleText]
    recompute: Recompute = "none"
    offload: Offload = Offload()

    @property
    def state(self) -> str | None:
        """The state of its parameters: the one that its axes carry."""
        return next((role.state for role in self.roles.values() if role.state), None)

    @property
    def runs_again(self) -> bool:
        """Whether backward runs its layers once more, but for what they keep."""
        return self.recompute == "full" or isinstance(self.recompute, Save)

    @property
    def singles_out_attention(self) -> bool:
        """Whether the core attention alone is computed again, or kept where others are."""
        return self.recompute == "selective" or (
            isinstance(self.recompute, Save) and "attention" in self.recompute.save
        )

    def axes(self, *splits: str) -> tuple[str, ...]:
        """The axes that have one of these splits, in the order of the row."""
        return tuple(axis for axis, role in self.roles.items() if role.split in splits)

    def state_axes(self) -> tuple[str, ...]:
        """The axes that carry a state: together the shard group."""
        return tuple(axis for axis, role in self.roles.items() if role.state)


class Stage(Record):
    """Layers that follow each other, on one group."""

    on: str
    layers: tuple[Row, ...]

    def names(self) -> list[str]:
        """Its layers, in order."""
        return [name for row in self.layers if row.part is None for name in span_names(row.span)]


class Execution(Record):
    """What changes speed and memory, but no result."""

    prefetch: NonNegativeInt = 1
    """Layers whose zero3 parameters are gathered ahead."""
    bucket_mib: PositiveFloat = 25.0
    """Gradients are reduced in pieces of this size."""
    sync: Literal["each", "last"] = "each"
    """When zero2 and zero3 reduce gradients: after each micro-batch, or once, keeping them whole until then."""
    overlap: tuple[Overlap, ...] = ("gathers", "gradients", "context")
    """What runs beside computing, where the backend can: gathers and reductions of sharded parameters, reductions of
    gradients once a step, a ring's next keys and values beside the attention to those at hand, pieces of
    tensor-parallel exchanges, or in backward whole ones of a matrix beside its products that need them not, and what
    one micro-batch sends to experts beside another, where the schedule pairs them.
    """
    dispatch: Literal["copies", "nodes"] = "copies"
    """What travels to experts: a copy of a position for each that it chose, or one for each node that has some, and
    inside of it one for each rank (DeepEP).
    """
    expert_imbalance: Annotated[float, Field(ge=1, le=MAX_DEVICES)] = 1.0
    """Positions of the busiest expert rank over the mean; 1: as even as a router can be forced to be."""
    kernels: Kernels = "hf-sdpa"
    """What the implementation fuses and keeps."""
    blocking: Flag = False
    """Whether the host waits for each kernel before it launches the next (CUDA_LAUNCH_BLOCKING=1): then nothing
    overlaps."""
    expandable_segments: Flag = False
    """Whether the allocator's segments grow, and what is free of them serves tensors of any size
    (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True): then there are fewer gaps.
    """


class ModelRef(Record):
    """The model that the plan is for."""

    name: str
    fingerprint: str | None = None
    source: str | None = None
    """A file of the model, relative to the plan's own folder, where the catalogue does not have it."""


class ClusterRef(Record):
    """The cluster that the plan is for."""

    name: str
    fingerprint: str | None = None
    source: str | None = None


class RecipeRef(Record):
    """The recipe that the plan is for, its batch and sequence repeated for the reader."""

    global_batch: PositiveInt
    sequence: PositiveInt | dict[str, PositiveInt]
    fingerprint: str | None = None
    source: str | None = None


class Placed(NamedTuple):
    """One layer as the plan places it."""

    layer: str
    stage: int
    group: str
    row: Row
    """The row of the layer as a whole."""
    parts: dict[str, Row]
    """Rows of parts that differ."""


MAX_MICRO_BATCHES = 2**16
_MAX_ACTIONS = 2**20  # of one direction; a step is simulated action by action
_MAX_ROWS = 16 * MAX_LAYERS


class Plan(Document):
    """Stages in forward order, on groups of devices, with the roles of every layer."""

    noun: ClassVar[str] = "plan"
    meshwright_plan: Literal[1] = 1
    name: str | None = None
    source: str | None = None
    """Where a plan that somebody published was found."""
    model: ModelRef
    cluster: ClusterRef
    recipe: RecipeRef
    micro_batches: Annotated[PositiveInt, Field(le=MAX_MICRO_BATCHES)]
    schedule: Schedule = "1f1b"
    groups: Annotated[dict[GroupName, Group], Field(min_length=1)]
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _stages_name_groups(self) -> "Plan":
        for place, stage in enumerate(self.stages):
            if stage.on not in self.groups:
                hint = did_you_mean(stage.on, self.groups)
                raise misplaced(("stages", place, "on"), f"no group is called '{stage.on}'; {hint}")
        return self

    @model_validator(mode="after")
    def _has_a_size_to_handle(self) -> "Plan":
        devices = sum(group.size for group in self.groups.values())
        if devices > 4 * MAX_DEVICES:
            raise misplaced(("groups",), f"{devices:,} devices are named in all; a plan can name {4 * MAX_DEVICES:,}")
        actions = len(self.stages) * self.micro_batches
        if actions > _MAX_ACTIONS:
            message = f"{self.micro_batches:,} times {len(self.stages):,} stages is more than {_MAX_ACTIONS:,}"
            raise misplaced(("micro_batches",), message)
        rows = sum(len(parse_span(row.span)[1] or (0,)) for stage in self.stages for row in stage.layers)
        if rows > _MAX_ROWS:
            raise misplaced(("stages",), f"{rows:,} layers and parts are named; a plan can name {_MAX_ROWS:,}")
        return self

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """Every layer that the plan names, in the order of its stages."""
        return tuple(self._place())

    def as_data(self) -> dict[str, Any]:
        """As for every record, but the schedule is always said: a reader should not have to know our default."""
        data = super().as_data() | {"schedule": self.schedule}
        return {name: data[name] for name in type(self).model_fields if name in data}

    def content(self) -> dict[str, Any]:
        """As for every document, but with the order of each mesh."""
        content = super().content()
        for group in content["groups"].values():
            group["mesh"] = list(group["mesh"].items())
        return content

    def _place(self) -> Iterator[Placed]:
        for number, stage in enumerate(self.stages):
            parts: dict[str, dict[str, Row]] = {}
            for row in stage.layers:
                if row.part is not None:
                    for name in span_names(row.span):
                        parts.setdefault(name, {})[row.part] = row
            for row in stage.layers:
                if row.part is None:
                    for name in span_names(row.span):
                        yield Placed(name, number, stage.on, row, parts.get(name, {}))

    @cached_property
    def world_size(self) -> int:
        """Devices that work."""
        return len({rank for group in self.groups.values() for rank in group.devices})

    def degree(self, row: Row, group: str, *splits: str) -> int:
        """How many ways a row splits by these: the product of the axes' sizes."""
        mesh = self.groups[group].mesh
        return math.prod(mesh.get(axis, 1) for axis in row.axes(*splits))
