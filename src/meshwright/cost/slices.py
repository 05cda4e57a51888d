"""The tensors of a layer as one rank has them, which are what an optimizer steps."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from meshwright.cost.blocks import Block
from meshwright.cost.flows import active
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Extent, Share, layer_shares
from meshwright.cost.states import sharding_of
from meshwright.model.tensors import Tensor, read_by_loss, tensors


class Slice(NamedTuple):
    """A tensor as one rank has it before a state shards it, and as all tensor ranks have it together."""

    own: Tensor
    whole: Tensor

    @property
    def is_cut(self) -> bool:
        """Whether tensor ranks have different slices of it."""
        return self.own.numbers < self.whole.numbers


class Stepped(NamedTuple):
    """What learns under one row of a layer, and the ranks that share it."""

    slices: tuple[Slice, ...]
    shard: tuple[str, ...]
    """Axes of the shard group."""
    ways: int
    """Its ranks."""
    tensor: tuple[str, ...]
    """Axes of tensor parallelism."""
    ranks: int
    """Their ranks."""

    @property
    def own(self) -> list[Tensor]:
        """A rank's tensors before the state shards them."""
        return [each.own for each in self.slices]

    def sharing(self, each: Slice) -> tuple[str, ...]:
        """The axes whose ranks have parts of one matrix. A state cuts a batch of matrices between these first, and
        through them where the ranks are more.

        >>> group = Stepped((), ("dp",), 4, ("tp",), 2)
        >>> one, many = Tensor("matrix", 8, 8), Tensor("matrix", 8, 8, batch=4)
        >>> [group.sharing(Slice(each, each)) for each in (one, many)]
        [('dp',), ()]
        >>> group.sharing(Slice(many, many._replace(rows=16)))
        ('tp',)
        """
        return self.shard * (self.ways > each.own.batch) + self.tensor * each.is_cut


def stepped_by(placement: Placement, block: Block) -> list[Stepped]:
    """What learns of one layer of a block, row by row."""
    return placement.once(("stepped", placement.sharded_alike(block)), lambda: list(_stepped(placement, block)))


def _stepped(placement: Placement, block: Block) -> Iterator[Stepped]:
    mesh, heads = placement.group(block.group).mesh, read_by_loss(block.stack.operators)
    own = [_learning(shares, heads) for _, _, shares in placement.row_shares(block)]
    whole = [_learning(shares, heads) for shares in _undivided(placement, block)]
    for (row, _), mine, together in zip(block.rows(), own, whole, strict=True):
        sharding = sharding_of(placement.state_row(block, row), mesh)
        tensor = active(row.axes("tp", "tp+sp"), mesh)
        slices = tuple(Slice(*both) for both in zip(mine, together, strict=True))
        yield Stepped(slices, sharding.shard, sharding.ways, tensor, math.prod(mesh[axis] for axis in tensor))


def _learning(shares: Iterable[Share], heads: frozenset[str]) -> list[Tensor]:
    return [
        tensor
        for share in shares
        if share.learns
        for tensor in tensors(share.operator, read_by_loss=share.operator.path in heads)
    ]


def _undivided(placement: Placement, block: Block) -> list[list[Share]]:
    """As `row_shares`, were there no tensor parallelism."""
    ways = placement.ways(block)
    if all(each.tensor == 1 for _, each in ways):
        return [shares for _, _, shares in placement.row_shares(block)]
    extent = Extent(placement.samples, placement.lengths, block.stack.stream)
    alone = [(part, each._replace(tensor=1, scattered=1)) for part, each in ways]
    found = dict(zip((part.name for part, _ in ways), layer_shares(alone, extent, block.learning), strict=True))
    return [[share for part in parts for share in found[part.name]] for _, parts in block.rows()]
