"""What the roles of a row move: the collectives of one layer and micro-batch, those of each way in the order in which
the operators stand.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from meshwright.cost.casts import Narrow, gathered
from meshwright.cost.kernels import KernelSet
from meshwright.cost.routing import Routing, routing_of
from meshwright.cost.shares import Share, elements
from meshwright.model.operators import Add, Attention, Dropout, Embedding, Experts, Linear, Loss, Norm
from meshwright.plan.spec import Recompute, Repeat, Row, Save

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "exchange", "p2p"]
Purpose = Literal[
    "tensor", "context", "sequence", "expert", "statistics", "loss", "shard", "gradient", "transition", "pipeline",
    "tied", "norm",
]  # fmt: skip
When = Literal["forward", "recompute", "backward", "reduce", "update"]
"""The first three happen for each micro-batch; `reduce` is once a step, before the optimizer, `update` after it."""


class Beside(NamedTuple):
    """The product of a backward that an exchange has nothing to do with, so that both may run at once."""

    gradient: Literal["input", "weight"]
    matrix: int
    """As `Share.matrix`."""


class Flow(NamedTuple):
    """Equal collectives over axes of a layer's group. `volumes.Collective` says what `bytes` means for each kind."""

    purpose: Purpose
    kind: Kind
    axes: tuple[str, ...]
    bytes: float
    when: When
    times: int = 1
    routing: Routing | None = None
    """Where the experts may lie that positions are sent to."""
    beside: Beside | None = None
    """Of a cut matrix: the product that it may hide beside."""


def active(axes: Iterable[str], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Those of the axes that have more than one rank, in mesh order."""
    wanted = set(axes)
    return tuple(axis for axis, size in mesh.items() if axis in wanted and size > 1)


class Roles(NamedTuple):
    """The axes of a row by what they do to its operators."""

    plain: tuple[str, ...]
    """`tp`"""
    scattered: tuple[str, ...]
    """`tp+sp`"""
    ring: tuple[str, ...]
    ulysses: tuple[str, ...]
    experts: tuple[str, ...]
    ring_size: int
    pieces: int
    """Ranks of both kinds of tensor parallelism."""
    batch: tuple[str, ...] = ()
    """`dp`"""
    batch_size: int = 1

    @property
    def tensor(self) -> tuple[str, ...]:
        """Both kinds of tensor parallelism."""
        return self.plain + self.scattered


def roles_of(row: Row, mesh: Mapping[str, int]) -> Roles:
    """The roles of a row on a mesh."""

    def size(axes: tuple[str, ...]) -> int:
        return math.prod(mesh[axis] for axis in axes)

    plain, scattered, ring, ulysses, experts = (
        active(row.axes(split), mesh) for split in ("tp", "tp+sp", "cp", "ulysses", "ep")
    )
    batch = active(row.axes("dp"), mesh)
    return Roles(plain, scattered, ring, ulysses, experts, size(ring), size(plain + scattered), batch, size(batch))


def role_flows(
    shares: Sequence[Share],
    roles: Roles,
    kernels: KernelSet,
    element: float,
    narrow: Narrow | None = None,
    *,
    chunks: int = 1,
) -> list[Flow]:
    """The collectives of a part's operators for one micro-batch, `element` bytes an activation, and fewer a number that
    is gathered for a narrow product; the loss's for each of `chunks` pieces of the positions.
    """
    flows: list[Flow] = []
    for share in shares:
        wanted = gathered(narrow, kernels, element) if isinstance(share.operator, Linear) else element
        if share.enters:
            flows += _entering(share, roles, kernels, (element, wanted))
        match share.operator:
            case Attention() as core:
                flows += _ring(core, share, roles, element) + _ulysses(core, share, roles, element)
            case Experts() as experts if roles.experts:
                flows += _dispatch(experts, share, roles, element)
            case Norm(kind="batch") if roles.batch:
                flows += _statistics(share.operator, share, roles, element)
            case Loss() if share.inside:
                wide = max(4.0, element)
                size = wide * share.work.positions / chunks
                flows.append(Flow("loss", "all_reduce", roles.tensor, size, "forward", 3 * chunks))
        if share.leaves:
            flows += _leaving(share, roles, (element, wanted))
    return flows


def _entering(share: Share, roles: Roles, kernels: KernelSet, elements_of: tuple[float, float]) -> list[Flow]:
    """What is the same on all tensor ranks enters a cut block: its gradient is summed (Shoeybi 2019, section 3). Under
    `tp+sp` it is gathered, and its gradient summed and scattered (Korthikanti 2022, section 4.2.2). Each has element x
    positions x width bytes: 2 x 16 x 8.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=8, outputs=16), Work(1, 16, 16), learns=True, passes=True, enters=True)
    >>> roles = roles_of(Row(span="a", roles={"x": "tp"}), {"x": 4})
    >>> [(flow.kind, flow.when, flow.bytes) for flow in _entering(share, roles, KERNEL_SETS["hf-sdpa"], (2.0, 2.0))]
    [('all_reduce', 'backward', 256.0)]
    """
    operator = share.operator
    assert isinstance(operator, Linear | Experts)
    width = _routed_width(operator, roles) if isinstance(operator, Experts) else operator.inputs
    by_input = Beside("input", share.matrix) if isinstance(operator, Linear) else None
    by_weight = by_input._replace(gradient="weight") if by_input else None
    size, wanted = (element * share.sent * width for element in elements_of)
    flows = []
    if roles.plain and share.passes:
        flows.append(Flow("tensor", "all_reduce", roles.plain, size, "backward", beside=by_weight))
    if roles.scattered:
        flows.append(Flow("tensor", "all_gather", roles.scattered, wanted, "forward"))
        if kernels.gathers_again and share.learns:
            flows.append(Flow("tensor", "all_gather", roles.scattered, wanted, "backward", beside=by_input))
        if share.passes:
            flows.append(Flow("tensor", "reduce_scatter", roles.scattered, size, "backward", beside=by_weight))
    return flows


def _statistics(norm: Norm, share: Share, roles: Roles, element: float) -> list[Flow]:
    """A mean and a sum of squares for each channel go to all ranks that hold samples of a micro-batch, and in backward
    two sums are summed (Ioffe and Szegedy 2015, section 3), in float32 or wider: 4 x 2 x 16, over two ranks.

    >>> from meshwright.model.work import Work
    >>> norm = Norm(kind="batch", width=16)
    >>> roles = roles_of(Row(span="a", roles={"x": "dp"}), {"x": 2})
    >>> flows = _statistics(norm, Share(norm, Work(1, 9, 9), learns=True, passes=True), roles, 2.0)
    >>> [(flow.kind, flow.when, flow.bytes) for flow in flows]
    [('all_gather', 'forward', 256.0), ('all_reduce', 'backward', 128.0)]
    """
    size = 2 * norm.width * max(4.0, element)
    forward = Flow("statistics", "all_gather", roles.batch, size * roles.batch_size, "forward")
    back = Flow("statistics", "all_reduce", roles.batch, size, "backward")
    return [forward, back] if share.learns or share.passes else [forward]


def _routed_width(experts: Experts, roles: Roles) -> int:
    """Numbers of a position as they cross between tensor ranks: where positions were sent to their experts before, one
    copy for each that it was sent to.
    """
    return experts.hidden * (experts.top_k if roles.experts and roles.scattered else 1)


def _leaving(share: Share, roles: Roles, elements_of: tuple[float, float]) -> list[Flow]:
    """What each tensor rank has a part of leaves a cut block: it is summed, and scattered under `tp+sp` (the same
    sources). Each has element x positions x width bytes: 2 x 16 x 8.

    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=4, outputs=8), Work(1, 16, 16), learns=True, passes=True, leaves=True)
    >>> roles = roles_of(Row(span="a", roles={"x": "tp+sp"}), {"x": 4})
    >>> [(flow.kind, flow.when, flow.bytes) for flow in _leaving(share, roles, (2.0, 2.0))]
    [('reduce_scatter', 'forward', 256.0), ('all_gather', 'backward', 256.0)]
    """
    operator = share.operator
    assert isinstance(operator, Linear | Embedding | Experts)
    copies = _routed_width(operator, roles) / operator.hidden if isinstance(operator, Experts) else 1
    size, wanted = (each * copies * elements(operator, share.work) / share.crowding for each in elements_of)
    flows = []
    if roles.plain:
        flows.append(Flow("tensor", "all_reduce", roles.plain, size, "forward"))
    if roles.scattered:
        flows.append(Flow("tensor", "reduce_scatter", roles.scattered, size, "forward"))
        if share.learns or share.passes:
            flows.append(Flow("tensor", "all_gather", roles.scattered, wanted, "backward"))
    return flows


def _ring(core: Attention, share: Share, roles: Roles, element: float) -> list[Flow]:
    """Keys and values go once round the ring; in backward they do so again, and so do their gradients (Liu 2023,
    section 3). A message has element x keys x KV heads x (head + value) bytes: 2 x 4 x 2 x 16.

    >>> from meshwright.model.work import Work
    >>> core = Attention(heads=4, kv_heads=2, head_dim=8)
    >>> share = Share(core, Work(1, 4, 16), learns=False, passes=True, keys=4)
    >>> roles = roles_of(Row(span="a", roles={"x": "cp"}), {"x": 4})
    >>> [(flow.when, flow.bytes, flow.times) for flow in _ring(core, share, roles, 2.0)]
    [('forward', 256.0, 3), ('backward', 256.0, 6)]
    """
    if not roles.ring:
        return []
    width = core.kv_heads * (core.head_dim + (core.value_dim or core.head_dim))
    size, hops = element * share.work.samples * share.keys * width, roles.ring_size - 1
    flows = [Flow("context", "p2p", roles.ring, size, "forward", hops)]
    return flows + [Flow("context", "p2p", roles.ring, size, "backward", 2 * hops)] * share.passes


def _ulysses(core: Attention, share: Share, roles: Roles, element: float) -> list[Flow]:
    """Queries, keys, values and outputs change from a run of positions to a run of heads and back: four exchanges
    forward and four backward (Jacobs 2023, section 3.1). A rank holds element x positions x heads x head of each: of
    queries 2 x 16 x 4 x 8 bytes.

    >>> from meshwright.model.work import Work
    >>> core = Attention(heads=4, kv_heads=2, head_dim=8)
    >>> share = Share(core, Work(1, 16, 16), learns=False, passes=False, keys=16)
    >>> roles = roles_of(Row(span="a", roles={"x": "ulysses"}), {"x": 2})
    >>> [flow.bytes for flow in _ulysses(core, share, roles, 2.0)]
    [1024.0, 512.0, 512.0, 1024.0]
    """
    if not roles.ulysses:
        return []
    value = core.value_dim or core.head_dim
    rows, keys = share.work.positions * core.heads, share.work.samples * share.keys * core.kv_heads
    sizes = (rows * core.head_dim, keys * core.head_dim, keys * value, rows * value)
    ways: tuple[When, ...] = ("forward", "backward") if share.passes else ("forward",)
    return [Flow("sequence", "all_to_all", roles.ulysses, element * size, way) for way in ways for size in sizes]


def _dispatch(experts: Experts, share: Share, roles: Roles, element: float) -> list[Flow]:
    """Positions go to their experts and come back, once forward and once backward (Lepikhin 2020, section 3.2): element
    x positions x top-k x hidden bytes, 2 x 16 x 2 x 8, of the rank to which most come; evenly spread, of any.

    >>> from meshwright.model.work import Work
    >>> experts = Experts(count=4, top_k=2, hidden=8, ffn=24)
    >>> share = Share(experts, Work(1, 16, 16), learns=True, passes=True)
    >>> roles = roles_of(Row(span="a", roles={"x": "ep"}), {"x": 2})
    >>> [(flow.when, flow.bytes, flow.times) for flow in _dispatch(experts, share, roles, 2.0)]
    [('forward', 512.0, 2), ('backward', 512.0, 2)]

    Under `tp+sp` each tensor rank sends its own run of positions to the rank of its place, and what has come is
    gathered over the tensor ranks (megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher).
    """
    scattered = share.scattered if roles.scattered else 1
    size = element * share.work.positions * experts.top_k * experts.hidden / scattered
    ways: tuple[When, ...] = ("forward", "backward") if share.passes or share.learns else ("forward",)
    return [Flow("expert", "all_to_all", roles.experts, size, way, 2, routing_of(experts)) for way in ways]


def last_sums(shares: Sequence[Share], roles: Roles) -> int:
    """How many collectives sum up what the last matrix puts out, where nothing that backward wants comes after them:
    only what keeps nothing, an addition or a dropout that drops nothing. A norm or a real dropout wants that sum.
    """
    for share in reversed(shares):
        if share.leaves:
            return bool(roles.plain) + bool(roles.scattered)
        operator = share.operator
        if not (isinstance(operator, Add) or (isinstance(operator, Dropout) and not operator.probability)):
            return 0
    return 0


def repeated(flows: Sequence[Flow], recompute: Recompute, kernels: KernelSet, *, unread: int) -> list[Flow]:
    """The collectives of forward that recompute runs again. Those of the loss are not: what it keeps stays. Where the
    outputs of collectives are saved, those of gathers are not, since the matrices that want them keep a rank's own run
    (torchtitan saves `reduce_scatter_tensor` alone, 2024).

    `unread`: of the sums over tensor ranks, so many of the last are wanted by no backward of the layer (`last_sums`),
    and a kernel set that stops early does not reach them: of a decoder layer's two, one is repeated.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> sums = [Flow("tensor", "all_reduce", ("tp",), 64.0, "forward")] * 2
    >>> [len(repeated(sums, "full", KERNEL_SETS[name], unread=1)) for name in ("hf-sdpa", "megatron-flash")]
    [1, 2]
    """
    if recompute == "none" or isinstance(recompute, Repeat):
        return []
    again = [flow for flow in flows if flow.when == "forward" and flow.purpose != "loss"]
    if isinstance(recompute, Save) and "collective" in recompute.save:
        gathers = [flow for flow in again if flow.purpose == "tensor" and flow.kind == "all_gather"]
        return [flow._replace(when="recompute") for flow in gathers]
    if recompute == "selective":
        again = [flow for flow in again if flow.purpose == "context"]
    elif kernels.stops_early and unread:
        sums = [place for place, flow in enumerate(again) if flow.purpose == "tensor"]
        again = [flow for place, flow in enumerate(again) if place not in sums[-unread:]]
    if isinstance(recompute, Save) and "attention" in recompute.save:
        again = [flow for flow in again if flow.purpose != "context"]
    return [flow._replace(when="recompute") for flow in again]
