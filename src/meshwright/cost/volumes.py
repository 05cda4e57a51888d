"""Bytes and collectives of a plan: of every role, state, transition between unlike neighbours, stage cut, tied copy.

The single source for both worlds: estimates take their time from these, and the runtime's counted bytes are tested
against them. By Megatron's scheme (Shoeybi 2019), a decoder layer under `tp` moves four all-reduces of
[batch, seq, hidden] for each micro-batch: attention and MLP each sum their output in forward, and in backward the
gradient of their input, which query, key and value, or gate and up, share. An embedding that is cut by vocabulary sums
its output in forward; a head that is cut by vocabulary sums the gradient of its input in backward, and its loss needs
three small all-reduces of [batch, seq] in float32 or wider (largest logit, sum of exponentials, target's logit).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshwright.cost.blocks import Block, Edge
from meshwright.cost.casts import narrow_of
from meshwright.cost.flows import Flow, Kind, Purpose, When, active, last_sums, repeated, role_flows, roles_of
from meshwright.cost.moves import Crossing, crossing, moves
from meshwright.cost.optimizers import optimizer_flows
from meshwright.cost.placement import Placement
from meshwright.cost.slices import stepped_by
from meshwright.cost.states import Parameters, Widths, count_parameters, owner_flows, sharding_of, state_flows
from meshwright.model.operators import Attention, Convolution, Embedding, Experts, Linear, Operator
from meshwright.model.spec import Part
from meshwright.plan.divisions import by_tokens, division
from meshwright.plan.groups import axis_groups, cut_alike, tied_ranks
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Placed, Row
from meshwright.recipe.spec import BYTES

_MATRICES = (Linear, Experts, Embedding, Convolution)
NORM_BYTES = LOSS_BYTES = 8
"""The square of the gradient norm, and the step's loss: one float64 number each."""


@dataclass(frozen=True)
class Collective:
    """Equal collectives of one optimizer step, as the first device of their group sees them.

    `bytes` is, for each kind: `all_reduce` the tensor, `all_gather` the gathered tensor, `reduce_scatter` the tensor
    before, `all_to_all` what a rank holds (before as after; where experts get unequal shares, the busiest after),
    `exchange` what the busiest rank receives, `p2p` the message. Runtimes may cut one into buckets. To experts goes a
    copy for each, whatever `execution.dispatch` says: how many fewer reach nodes is a matter of where ranks lie.
    """

    purpose: Purpose
    kind: Kind
    groups: tuple[str, ...]
    """Names of the groups that take part, the sending one first; none for all ranks."""
    axes: tuple[str, ...]
    """Axes of the group's mesh; empty where groups take part as a whole."""
    ranks: tuple[int, ...]
    """The first device's process group, in mesh order."""
    bytes: float
    count: int
    """In the whole step: layers of the span x micro-batches x times each."""
    span: str
    """The layers."""
    when: When


def widths_of(placement: Placement) -> Widths:
    """Bytes of a parameter and of its gradient, by the recipe."""
    precision = placement.recipe.precision
    return Widths(BYTES[precision.compute], BYTES[precision.reduce])


def held_by(placement: Placement, block: Block) -> list[tuple[Row, Parameters]]:
    """The parameters of one layer of a block on one rank, row by row, before any state shards them."""
    counted = placement.once(("held", block.likeness), lambda: _counted(placement, block))
    return [(row, parameters) for (row, _), parameters in zip(block.rows(), counted, strict=True)]


def _counted(placement: Placement, block: Block) -> list[Parameters]:
    return [count_parameters(shares) for _, _, shares in placement.row_shares(block)]


def block_flows(placement: Placement, block: Block) -> list[Flow]:
    """The collectives of one layer of a block: those of its rows, of its states, and of its optimizer."""
    return [flow for flows in row_flows(placement, block) for flow in flows] + kept_flows(placement, block)


def row_flows(placement: Placement, block: Block) -> list[list[Flow]]:
    """The collectives of each row of a block: of its roles and recompute, and of the moves to and from a part with
    roles of its own.
    """
    return placement.once(("flows", block.likeness), lambda: _row_flows(placement, block))


def kept_flows(placement: Placement, block: Block) -> list[Flow]:
    """The collectives of what a layer keeps: of its states, and of its optimizer."""
    return placement.once(("kept", placement.sharded_alike(block)), lambda: _kept_flows(placement, block))


def _row_flows(placement: Placement, block: Block) -> list[list[Flow]]:
    mesh = placement.group(block.group).mesh
    found: list[list[Flow]] = []
    narrow = narrow_of(placement.recipe.precision, block.stack.operators)
    chunks = placement.recipe.loss.chunks
    for row, parts, shares in placement.row_shares(block):
        roles = roles_of(row, mesh)
        here = role_flows(shares, roles, placement.kernels, placement.element, narrow, chunks=chunks)
        if row is not block.row:
            here += _part_moves(placement, block, row, parts)
        unread = last_sums(shares, roles) if parts and parts[-1] is block.stack.parts[-1] else 0
        again = repeated(here, row.recompute, placement.kernels, unread=unread) if has_backward(block) else []
        found.append(here + again)
    return found


def _kept_flows(placement: Placement, block: Block) -> list[Flow]:
    flows = _block_states(placement, block)
    return flows + [flow for each in stepped_by(placement, block) for flow in optimizer_flows(placement.recipe, each)]


def has_backward(block: Block) -> bool:
    """Whether gradients come by: its parameters learn, or something that it reads, however far back, does."""
    return block.learning.trains or block.learning.fed


def _part_moves(placement: Placement, block: Block, row: Row, parts: tuple[Part, ...]) -> list[Flow]:
    """To the part's own division and back, forward; the same in backward. With a position go the weights of the experts
    that it chose: their gradient comes back beside its own.
    """
    mesh = placement.group(block.group).mesh
    operators = [operator for part in parts for operator in part.operators]
    source, target = by_tokens(block.row, row, mesh)
    if any(isinstance(operator, Attention) for operator in operators):
        source, target = division(block.row, mesh), division(row, mesh)
    weights = max((operator.top_k for operator in operators if isinstance(operator, Experts)), default=0)
    positions = placement.element * placement.samples * placement.lengths[block.stack.stream]
    into, out = positions * (block.stack.output + weights), positions * block.stack.output
    forward = moves(mesh, source, target, into) + moves(mesh, target, source, out)
    back = moves(mesh, source, target, out) + moves(mesh, target, source, into) if has_backward(block) else []
    return forward + [flow._replace(when="backward") for flow in back]


def _block_states(placement: Placement, block: Block) -> list[Flow]:
    """None where a later layer shards the block's parameters together with its own."""
    if block.lends:
        return []
    mesh, flows = placement.group(block.group).mesh, list[Flow]()
    follows = block.last and placement.once("follows", lambda: _follows_at_once(placement))
    for (row, held), pieces, stepped in zip(
        held_by(placement, block), _pieces(placement, block), stepped_by(placement, block), strict=True
    ):
        sharding, whole = sharding_of(row, mesh), held
        for name in block.joined if row is block.row else ():
            whole = whole.plus(held_by(placement, placement.block_of[name])[0][1])
        if placement.kernels.has_owners and sharding.state == "zero1":
            owned = len(stepped.own) * min(1.0, sharding.ways / _tensors(placement, block.group))
            flows += owner_flows(sharding, whole, widths_of(placement), owned)
            continue
        for piece in pieces if sharding.state == "zero3" and whole == held else [whole]:
            flows += state_flows(
                sharding,
                piece,
                widths_of(placement),
                sync=placement.plan.execution.sync,
                backward=has_backward(block),
                again=not follows,
            )
    return flows


def _pieces(placement: Placement, block: Block) -> list[list[Parameters]]:
    """What zero3 gathers at once of each row of a layer: all of it, or each matrix by itself and the rest with the
    first of them.
    """
    found = []
    for _, _, shares in placement.row_shares(block):
        rest = [share for share in shares if not isinstance(share.operator, _MATRICES)]
        matrices = [share for share in shares if share.operator.parameters() and isinstance(share.operator, _MATRICES)]
        if placement.kernels.gathers_matrices and len(matrices) > 1:
            first, *others = matrices
            found.append([count_parameters([first, *rest]), *(count_parameters([each]) for each in others)])
        else:
            found.append([count_parameters(shares)])
    return found


def pieces_of(placement: Placement, block: Block) -> int:
    """How many pieces of a layer are gathered one after the other under zero3."""
    sharded = any(row.state == "zero3" for row, _ in block.rows())
    return max(map(len, _pieces(placement, block))) if sharded and not block.joined else 1


def _tensors(placement: Placement, group: str) -> int:
    """Tensors that a rank of a group steps or leaves to their owners."""

    def count() -> int:
        blocks = [block for block in placement.blocks if block.group == group]
        return sum(len(block.names) * len(each.own) for block in blocks for each in stepped_by(placement, block))

    return placement.once(("tensors", group), count)


def _follows_at_once(placement: Placement) -> bool:
    """Whether every micro-batch's backward through the last stage follows its forward there at once, so that zero3 need
    not gather the last layer again.
    """
    stages = placement.plan.stages
    actions = list(placement.orders[placement.running.index(stages[-1].on)])
    return all(
        (after.stage, after.micro_batch) == (before.stage, before.micro_batch)
        for before, after in pairwise(actions)
        if before.kind == "forward" and before.stage == len(stages) - 1
    )


def edge_flows(placement: Placement, edge: Edge) -> list[Flow]:
    """The moves between two layers of one group."""
    mesh = placement.group(edge.target.group).mesh
    source, target = division(edge.source.row, mesh), division(edge.target.row, mesh)
    size = edge_bytes(placement, edge)
    back = moves(mesh, target, source, size) if edge.learns else []
    return moves(mesh, source, target, size) + [flow._replace(when="backward") for flow in back]


def edge_bytes(placement: Placement, edge: Edge) -> float:
    """Bytes of the activations that an edge carries for a micro-batch, all ranks together."""
    return placement.element * placement.samples * placement.lengths[edge.stream] * edge.width


def edge_crossing(placement: Placement, edge: Edge) -> Crossing:
    """What crosses from one group to another, of which tensor ranks may send a part each."""
    found, parts = _crossing(placement, edge), _parts(placement, edge)
    return Crossing(found.forward / parts, found.backward / parts)


def _crossing(placement: Placement, edge: Edge) -> Crossing:
    source = placement.group(edge.source.group), edge.source.row
    found = crossing(source, (placement.group(edge.target.group), edge.target.row), edge_bytes(placement, edge))
    return found if edge.learns else found._replace(backward=0.0)


def _parts(placement: Placement, edge: Edge) -> int:
    """Into how many parts tensor ranks cut what they all have, and send to as many."""
    ends = (edge.source, edge.target)
    ways = {math.prod(placement.group(end.group).mesh[axis] for axis in end.row.axes("tp")) for end in ends}
    return ways.pop() if placement.kernels.sends_parts and len(ways) == 1 else 1


def part_flows(placement: Placement, edge: Edge) -> list[tuple[Placed, Flow]]:
    """Where what was sent in parts is gathered: at the target forward, at the source backward."""
    whole = _crossing(placement, edge)
    ends: tuple[tuple[Placed, float, When], ...] = (
        (edge.target, whole.forward, "forward"),
        (edge.source, whole.backward, "backward"),
    )
    found = []
    for end, size, when in ends:
        axes = active(end.row.axes("tp"), placement.group(end.group).mesh)
        if size and _parts(placement, edge) > 1:
            found.append((end, Flow("transition", "all_gather", axes, size, when)))
    return found


def step_collectives(inputs: Inputs) -> list[Collective]:
    """Every collective of one optimizer step, as the first device of each group takes part in it; equal ones once.

    GPT-2 under tp 2: four all-reduces of [1, 1024, 768] in bf16 for each of 12 layers and 4 micro-batches.

    >>> from meshwright.cluster.shorthand import parse_cluster
    >>> from meshwright.model.resolve import from_catalog
    >>> from meshwright.plan.shorthand import uniform_plan
    >>> from meshwright.recipe.spec import Recipe
    >>> model, cluster, recipe = from_catalog("gpt2"), parse_cluster("2xh100"), Recipe(global_batch=4, sequence=1024)
    >>> plan = uniform_plan(model, cluster, recipe, tp=2, micro_batches=4)
    >>> every = step_collectives(Inputs(plan, model, cluster, recipe))
    >>> [(one.kind, one.when, one.bytes, one.count) for one in every if one.span == "decoder.0-11"]
    [('all_reduce', 'backward', 1572864.0, 96), ('all_reduce', 'forward', 1572864.0, 96)]
    """
    return list(_merged(_all_collectives(Placement(inputs))))


def _all_collectives(placement: Placement) -> Iterator[Collective]:
    for block in placement.blocks:
        span, layers = block.span, len(block.names)
        for flow in block_flows(placement, block):
            yield _collective(placement, flow, block.group, span, layers)
    for edge in placement.edges:
        yield from _edge_collectives(placement, edge)
    yield from tied_collectives(placement)
    yield from whole_step(placement)


def _collective(placement: Placement, flow: Flow, group: str, span: str, layers: int) -> Collective:
    per_step = placement.plan.micro_batches if flow.when in ("forward", "recompute", "backward") else 1
    ranks = axis_groups(placement.group(group), flow.axes)[0]
    count = layers * flow.times * per_step
    return Collective(flow.purpose, flow.kind, (group,), flow.axes, ranks, flow.bytes, count, span, flow.when)


def _edge_collectives(placement: Placement, edge: Edge) -> Iterator[Collective]:
    if edge.source.group == edge.target.group:
        for flow in edge_flows(placement, edge):
            yield _collective(placement, flow, edge.target.group, edge.target.layer, 1)
        return
    crossed = edge_crossing(placement, edge)
    groups, span = (edge.source.group, edge.target.group), edge.target.layer
    ranks = tuple(placement.group(group).devices[0] for group in groups)
    ways: tuple[tuple[float, When], ...] = ((crossed.forward, "forward"), (crossed.backward, "backward"))
    for size, when in ways:
        if size:
            yield Collective("pipeline", "p2p", groups, (), ranks, size, placement.plan.micro_batches, span, when)
    for end, flow in part_flows(placement, edge):
        yield _collective(placement, flow, end.group, end.layer, 1)


def tied_collectives(placement: Placement) -> Iterator[Collective]:
    """The gradients of a tied parameter's copies on other groups are summed once a step. Where the groups are alike,
    each rank sums its own slice; else all of them sum the whole.
    """
    gradient = widths_of(placement).gradient
    for owner, copies in placement.ties:
        if not copies or not placement.learns[owner]:
            continue
        members = [placement.placed(name) for name in (owner, *copies)]
        groups = tuple(dict.fromkeys(placed.group for placed in members))
        numbers = _tied_numbers(placement, copies[0], members)
        ranks = tied_ranks(placement.plan, members)[0]
        yield Collective("tied", "all_reduce", groups, (), ranks, gradient * numbers, 1, owner, "reduce")


def _tied_numbers(placement: Placement, copy: str, members: Sequence[Placed]) -> float:
    """Numbers of a tied parameter that are summed: the whole, or where all holders are cut alike, the slice that a rank
    holds; of that, the shard whose gradient each of them has. Under zero1 that is all of it where gradients have
    buffers (Megatron-LM's `_allreduce_embedding_grads`), and otherwise the shard that the reduction leaves (FSDP2).
    """
    block = placement.block_of[copy]
    tied = [operator for operator in block.stack.operators if getattr(operator, "tied", False)]
    if not cut_alike([(placement.group(placed.group), placed.row) for placed in members]):
        return float(sum(map(_tied_weight, tied)))
    names = {operator.path for operator in tied}
    shares = [share.operator for part in placement.shares(block) for share in part if share.operator.path in names]
    shardings = [sharding_of(placed.row, placement.group(placed.group).mesh) for placed in members]
    scattered = ("zero2", "zero3") if placement.kernels.keeps_gradients else ("zero1", "zero2", "zero3")
    kept = min(sharding.kept(*scattered) for sharding in shardings)
    return sum(map(_tied_weight, shares)) / kept


def _tied_weight(operator: Operator) -> int:
    """Numbers that an operator shares with another: of its bias none."""
    bias = operator.outputs if isinstance(operator, Linear) and operator.bias else 0
    return operator.model_copy(update={"tied": False}).parameters() - bias


def whole_step(placement: Placement) -> Iterator[Collective]:
    """The loss over the ranks that hold other samples or positions, which several groups then tell to all ranks; and
    the gradient norm over all ranks.
    """
    last = placement.plan.placed[-1]
    group = placement.group(last.group)
    axes = active(last.row.axes("dp", "ep", "cp", "ulysses"), group.mesh)
    ranks = axis_groups(group, axes)[0]
    if len(ranks) > 1:
        yield Collective("loss", "all_reduce", (last.group,), axes, ranks, LOSS_BYTES, 1, last.layer, "reduce")
    world = tuple(sorted(set().union(*(group.devices for group in placement.plan.groups.values()))))
    if len(placement.plan.groups) > 1:
        yield Collective("loss", "all_reduce", (), (), world, LOSS_BYTES, 1, last.layer, "reduce")
    if placement.recipe.clip_norm is not None and len(world) > 1:
        yield Collective("norm", "all_reduce", (), (), world, NORM_BYTES, 1, "", "reduce")


def _merged(collectives: Iterable[Collective]) -> Iterable[Collective]:
    found: dict[tuple[object, ...], Collective] = {}
    for one in collectives:
        key = (one.purpose, one.kind, one.groups, one.axes, one.bytes, one.span, one.when)
        before = found.get(key)
        found[key] = one if before is None else Collective(**(vars(before) | {"count": before.count + one.count}))
    return found.values()
