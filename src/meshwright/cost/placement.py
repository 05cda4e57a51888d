"""Where every layer of a plan stands: its layers as blocks, and what they read from elsewhere."""

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Self, TypeVar

from meshwright.cluster.spec import Pool
from meshwright.cost.blocks import Block, Edge
from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.cost.kernels import KERNEL_SETS, KernelSet
from meshwright.cost.shares import Extent, Learning, Share, layer_shares
from meshwright.cost.uses import Storage, storage_of
from meshwright.cost.ways import Ways, split_ways
from meshwright.errors import PlanError
from meshwright.model.operators import Linear
from meshwright.model.spans import span_names
from meshwright.model.spec import Layer, LayerStack, Part
from meshwright.plan.orders import Order, one_by_one, orders
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Group, Placed, Row
from meshwright.recipe.spec import BYTES

_Result = TypeVar("_Result")


class Placement:
    """A plan with its inputs, as cost sees it, in the order of its schedule or in given `orders` of its running groups.
    Raises PlanError where a stream has no length.
    """

    def __init__(
        self, inputs: Inputs, calibration: Calibration | None = None, *, orders: tuple[Order, ...] | None = None
    ) -> None:
        self.inputs, self.calibration = inputs, calibration or public_calibration()
        self.plan, self.model, self.recipe = inputs.plan, inputs.model, inputs.recipe
        self.samples = inputs.recipe.global_batch / inputs.plan.micro_batches
        """Samples of a micro-batch, over all ranks of a stage."""
        self.lengths = {stream: self._length(stream) for stream in inputs.model.streams}
        self._placed = {placed.layer: placed for placed in inputs.plan.placed}
        self.given_orders = orders
        self._memo: dict[object, Any] = {}
        self._calibrated: dict[object, Any] = {}

    def with_calibration(self, calibration: Calibration) -> Self:
        """The same plan under another calibration: what no calibration changes is computed once for both."""
        _ = self.orders, self.edges, self.stage_layers  # these, and what they are made of, are there before the copy
        other = copy.copy(self)
        other.calibration, other._calibrated = calibration, {}
        return other

    def once(self, key: object, make: Callable[[], _Result]) -> _Result:
        """What `make` gives, made once for each key. It must not depend on the calibration."""
        return _once(self._memo, key, make)

    def calibrated(self, key: object, make: Callable[[], _Result]) -> _Result:
        """What `make` gives, made once for each key under this calibration."""
        return _once(self._calibrated, key, make)

    def number(self, key: object) -> int:
        """A small number that stands for a large key."""
        return self.once(("number", key), lambda: len(self._memo))

    def _length(self, stream: str) -> int:
        known = self.model.streams[stream].length
        length = self.recipe.length(stream, known)
        if length is None:
            raise PlanError(
                f"recipe.sequence: stream '{stream}' of model '{self.model.name}' has no length; give it one"
            )
        return length

    @cached_property
    def kernels(self) -> KernelSet:
        """The kernel set that the plan names."""
        return KERNEL_SETS[self.plan.execution.kernels]

    @cached_property
    def running(self) -> tuple[str, ...]:
        """The groups that have stages, in the order of their first."""
        return tuple(dict.fromkeys(stage.on for stage in self.plan.stages))

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """The order of each running group's actions."""
        if self.given_orders is not None:
            return self.given_orders if self.pairs else tuple(map(one_by_one, self.given_orders))
        places = tuple(self.running.index(stage.on) for stage in self.plan.stages)
        return orders(self.plan.schedule, places, self.plan.micro_batches, pairs=self.pairs)

    @cached_property
    def pairs(self) -> bool:
        """Whether what one micro-batch sends to experts hides behind the computing of another."""
        asked = "experts" in self.plan.execution.overlap and all(map(self.overlaps, self.running))
        return asked and any(site.ways("ep") > 1 for site in self.inputs.sites)

    @property
    def element(self) -> float:
        """Bytes of an activation and of a parameter as it is computed with."""
        return BYTES[self.recipe.precision.compute]

    def pools(self, group: str) -> list[tuple[Pool, int]]:
        """The pools that the devices of a group are in, and how many are in each."""
        return self.once(("pools", group), lambda: self._pools(self.plan.groups[group].devices))

    def _pools(self, devices: tuple[int, ...]) -> list[tuple[Pool, int]]:
        cluster, found = self.inputs.cluster, []
        if len(cluster.pools) == 1:
            return [(cluster.pools[0], len(devices))]
        for pool, start in zip(cluster.pools, cluster.starts, strict=True):
            inside = range(start, start + pool.size)
            count = sum(rank in inside for rank in devices)
            if count:
                found.append((pool, count))
        return found

    def storage(self, group: str) -> Storage:
        """How the devices of a group keep numbers."""
        device = self.inputs.cluster.devices[self.pools(group)[0][0].device]
        matmul = self.recipe.precision.matmul
        narrow = BYTES[matmul] if matmul and self.kernels.keeps_narrow else None
        return storage_of(self.element, device.backend, self.model.family)._replace(narrow=narrow)

    def overlaps(self, group: str) -> bool:
        """Whether communication runs beside computing at all: over gloo it does not (FSDP2 on CPU), nor where the host
        waits for each kernel.
        """
        devices = self.inputs.cluster.devices
        return not self.plan.execution.blocking and all(
            devices[pool.device].backend != "gloo" for pool, _ in self.pools(group)
        )

    @cached_property
    def learns(self) -> dict[str, bool]:
        """Layer → whether any of its parameters learns."""
        trainable = self.recipe.trainable
        frozen = {name for span in trainable.frozen for name in span_names(span)}
        if trainable.lora is None:
            able = {id(stack): bool(stack.parameters) or _tied(stack) for stack in self.model.stacks}
        else:
            able = {id(stack): _adapts(stack, trainable.lora.targets) for stack in self.model.stacks}
        still = frozen | self.model.unused
        return {layer.name: able[id(layer.stack)] and layer.name not in still for layer in self.model.layers}

    @cached_property
    def fed(self) -> dict[str, bool]:
        """Layer → whether it gives a gradient on: something that it reads, however far back, wants one."""
        found: dict[str, bool] = {}
        for layer in self.model.layers:
            used = layer.name not in self.model.unused
            found[layer.name] = used and any(self.learns[read] or found[read] for read in layer.reads)
        return found

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The layers, equal ones together, in the order of the stages."""
        members: dict[tuple[object, ...], list[Placed]] = {}
        for placed in self.plan.placed:
            members.setdefault(self._key(placed), []).append(placed)
        return tuple(self._block(key, together) for key, together in members.items())

    def _key(self, placed: Placed) -> tuple[object, ...]:
        parts = tuple((name, id(row)) for name, row in placed.parts.items())
        layer, name = self.model.by_name[placed.layer], placed.layer
        joins = self._joined.get(name, ())
        last = placed is self.plan.placed[-1]
        return (
            placed.stage,
            id(layer.stack),
            id(placed.row),
            parts,
            self.learns[name],
            self.fed[name],
            name in self._copies,
            joins,
            name in self._lenders,
            last,
        )

    def _block(self, key: tuple[object, ...], together: list[Placed]) -> Block:
        first = together[0]
        name = first.layer
        lora = self.recipe.trainable.lora
        learning = Learning(self.learns[name], self.fed[name], lora, name in self._copies)
        joined, lends, last = self._joined.get(name, ()), name in self._lenders, first is self.plan.placed[-1]
        rows = (_content(first.row), *((part, _content(row)) for part, row in first.parts.items()))
        mesh = tuple(self.plan.groups[first.group].mesh.items())
        stack = self.model.by_name[name].stack
        return Block(
            stage=first.stage,
            group=first.group,
            stack=stack,
            row=first.row,
            parts=first.parts,
            learning=learning,
            names=tuple(placed.layer for placed in together),
            joined=joined,
            lends=lends,
            last=last,
            likeness=self.number((id(stack), rows, mesh, learning, joined, lends, last, self.storage(first.group))),
        )

    @cached_property
    def ties(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each tied parameter: the layer of its owner, and those of the copies that another group holds."""
        return [
            (owner, tuple(name for name in copies if self._placed[name].group != self._placed[owner].group))
            for owner, copies in self.model.tied_layers
        ]

    @cached_property
    def _copies(self) -> set[str]:
        """The layers that hold a copy: of those of another group, the first."""
        owners = {owner for owner, _ in self.model.tied_layers}
        return {names[0] for names in self._sharing if names[0] not in owners}

    @property
    def _sharing(self) -> Iterator[list[str]]:
        """The layers that share a parameter on one group."""
        for owner, copies in self.model.tied_layers:
            held: dict[str, list[str]] = {}
            for name in dict.fromkeys((owner, *copies)):
                held.setdefault(self._placed[name].group, []).append(name)
            yield from held.values()

    @cached_property
    def _joined(self) -> dict[str, tuple[str, ...]]:
        """The last of the layers that share a parameter on one group, where a state shards it → the others."""
        return {
            names[-1]: tuple(names[:-1])
            for names in self._sharing
            if len(names) > 1 and self._placed[names[-1]].row.state
        }

    @cached_property
    def _lenders(self) -> dict[str, str]:
        return {name: last for last, others in self._joined.items() for name in others}

    def state_row(self, block: Block, row: Row) -> Row:
        """The row whose states shard the parameters under a row: that of the layer which takes them, or itself."""
        return self._placed[self._lenders[block.names[0]]].row if block.lends and row is block.row else row

    def sharded_alike(self, block: Block) -> tuple[int, int | None]:
        """Equal for blocks that are alike, and whose parameters the same row shards where it is not their own."""
        return block.likeness, id(self.state_row(block, block.row)) if block.lends else None

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """What layers read from elsewhere: from another stage, or from a layer under another row. What several layers
        of a stage read under one row is moved once.
        """
        found: dict[tuple[str, int, int], Edge] = {}
        for placed in self.plan.placed:
            for read in self.model.by_name[placed.layer].reads:
                source = self._placed[read]
                if source.row is placed.row:
                    continue
                stack = self.model.by_name[read].stack
                edge = Edge(source, placed, stack.output, stack.stream, self.learns[read] or self.fed[read])
                found.setdefault((read, placed.stage, id(placed.row)), edge)
        return tuple(found.values())

    def placed(self, layer: str) -> Placed:
        """Where a layer stands."""
        return self._placed[layer]

    def group(self, name: str) -> Group:
        """A group by name."""
        return self.plan.groups[name]

    @cached_property
    def block_of(self) -> dict[str, Block]:
        """The block of each layer."""
        return {name: block for block in self.blocks for name in block.names}

    @cached_property
    def stage_layers(self) -> tuple[tuple[Block, ...], ...]:
        """The block of each layer, stage by stage, in order."""
        found: list[list[Block]] = [[] for _ in self.plan.stages]
        for placed in self.plan.placed:
            found[placed.stage].append(self.block_of[placed.layer])
        return tuple(map(tuple, found))

    def stage_blocks(self, stage: int) -> list[Block]:
        """The blocks of a stage, in order."""
        return [block for block in self.blocks if block.stage == stage]

    def ways(self, block: Block) -> list[tuple[Part, Ways]]:
        """The parts of a block, each with the ways of its row."""
        mesh = self.plan.groups[block.group].mesh
        return [(part, split_ways(block.parts.get(part.name, block.row), mesh)) for part in block.stack.parts]

    def shares(self, block: Block) -> list[list[Share]]:
        """The operators of each part of a block as one rank has them; equal ones of other stages are computed once."""
        return self.once(("shares", block.likeness), lambda: self._shares(block))

    def _shares(self, block: Block) -> list[list[Share]]:
        """Blocks that are split alike share them, whatever they recompute and whatever shards their states."""
        extent = Extent(self.samples, self.lengths, block.stack.stream, self.plan.execution.expert_imbalance)
        ways = self.ways(block)
        key = "split", id(block.stack), tuple(own for _, own in ways), block.learning
        return self.once(key, lambda: layer_shares(ways, extent, block.learning))

    def row_shares(self, block: Block) -> list[tuple[Row, tuple[Part, ...], list[Share]]]:
        """Each row of a block, with the parts under it and their operators as one rank has them."""
        return self.once(("row_shares", block), lambda: self._row_shares(block))

    def _row_shares(self, block: Block) -> list[tuple[Row, tuple[Part, ...], list[Share]]]:
        shares = dict(zip((part.name for part in block.stack.parts), self.shares(block), strict=True))
        return [(row, parts, [share for part in parts for share in shares[part.name]]) for row, parts in block.rows()]

    def whole_shares(self, block: Block) -> list[Share]:
        """The operators of one layer of a block as a single rank would have them, for the whole global batch."""
        extent = Extent(self.recipe.global_batch, self.lengths, block.stack.stream)
        parts = [(part, Ways()) for part in block.stack.parts]
        return [share for part in layer_shares(parts, extent, block.learning) for share in part]

    def input_width(self, block: Block) -> int:
        """Values that a layer of a block takes in for each position: what recompute keeps."""
        layer = self.model.by_name[block.names[-1]]
        return sum(self.model.by_name[read].stack.output for read in _main_reads(layer))


def _once(memo: dict[object, Any], key: object, make: Callable[[], _Result]) -> _Result:
    if key not in memo:
        memo[key] = make()
    found: _Result = memo[key]
    return found


def _content(row: Row) -> tuple[object, ...]:
    """What a row says of its layers, whichever they are."""
    return tuple(row.roles.items()), row.recompute, row.offload


def _main_reads(layer: Layer) -> list[str]:
    return [read for read in layer.reads if read not in layer.stack.side]


def _tied(stack: LayerStack) -> bool:
    return any(vars(operator).get("tied", False) for operator in stack.operators)


def _adapts(stack: LayerStack, targets: tuple[str, ...]) -> bool:
    linears = [operator.path for operator in stack.operators if isinstance(operator, Linear)]
    return any(path == end or path.endswith(f".{end}") for path in linears for end in targets)
