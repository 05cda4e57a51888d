"""What layers keep for each micro-batch from forward to backward, under recompute, offload and backwards in halves."""

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.cost.blocks import Block
from meshwright.cost.halves import between_halves
from meshwright.cost.kernels import KernelSet
from meshwright.cost.placement import Placement
from meshwright.cost.repeats import is_core, is_repeated, kept_beside
from meshwright.cost.shares import Share, elements
from meshwright.cost.uses import Storage, Use
from meshwright.cost.ways import split_ways
from meshwright.model.operators import Attention, Loss
from meshwright.plan.spec import Recompute, Repeat, Row, Save


class Activations(NamedTuple):
    """Bytes that one layer keeps for one micro-batch on one rank."""

    kept: float = 0.0
    """From forward to backward."""
    whole: float = 0.0
    """What backward needs of the layer when it is its turn: the same without recompute or offload, and what operators
    need on their way."""
    logits: float = 0.0
    passing: float = 0.0
    """What the loss needs besides while it runs backward."""
    weights: float = 0.0
    """What stays for the gradients of the weights, where these come later than that of the input (`cost.halves`)."""
    away: float = 0.0
    """What the host keeps."""

    def plus(self, other: "Activations", times: int = 1) -> "Activations":
        """Both together, the other so many times."""
        return Activations(*(one + times * more for one, more in zip(self, other, strict=True)))


def layer_activations(placement: Placement, block: Block) -> Activations:
    """One layer of a block; equal ones of other stages are computed once. Under full recompute a layer keeps its input
    (Chen 2016, section 3): of eight positions 768 numbers in bf16.

    >>> import meshwright as mw
    >>> from meshwright.plan.rules import Inputs
    >>> given = mw.model("gpt2"), mw.cluster("2xh100"), mw.recipe(global_batch=4, sequence=8)
    >>> placement = Placement(Inputs(mw.uniform_plan(*given, recompute="full"), *given))
    >>> layer_activations(placement, placement.block_of["decoder.0"]).kept == 2 * 8 * 768
    True
    """
    return placement.once(("activations", block.likeness), lambda: _layer_activations(placement, block))


def _layer_activations(placement: Placement, block: Block) -> Activations:
    storage, total = placement.storage(block.group), Activations()
    for row, _, under in placement.row_shares(block):
        work = [share for share in under if not isinstance(share.operator, Loss)]
        uses = [placement.kernels.use(share, storage) for share in work]
        all_of_it = sum(use.kept for use in uses)
        rest = min(all_of_it, _recomputed(placement, block, row, work, storage))
        here, away = (0.0, rest) if row.offload.activations else (rest, 0.0)
        losses = [placement.kernels.use(share, storage) for share in under if isinstance(share.operator, Loss)]
        chunks = placement.recipe.loss.chunks
        total = total.plus(
            Activations(
                kept=here,
                whole=_most_at_once(uses),
                logits=sum(use.kept for use in losses) / chunks,
                passing=sum(use.passing for use in losses) / chunks,
                weights=between_halves(work, here, placement.kernels, storage),
                away=away,
            )
        )
    return total


def _most_at_once(uses: Sequence[Use]) -> float:
    """What a layer's backward needs: it goes from the last operator to the first, and lets go of what each has kept.

    >>> _most_at_once([Use(4.0, 0.0), Use(3.0, 0.0, passing=5.0), Use(2.0, 0.0)])
    12.0
    """
    needed = kept = 0.0
    for use in uses:
        kept += use.kept
        needed = max(needed, kept + use.passing)
    return needed


def _recomputed(placement: Placement, block: Block, row: Row, shares: Sequence[Share], storage: Storage) -> float:
    """What is kept under recompute: `selective` leaves out the core attention's own (Korthikanti 2022, section 5);
    `full` keeps the layer's input alone; a list of saved ones keeps that and what these operators put out, a list of
    repeated ones all but that.
    """
    recompute, kernels = row.recompute, placement.kernels
    if recompute == "none":
        return sum(kernels.use(share, storage).kept for share in shares)
    if isinstance(recompute, Repeat):
        return kept_beside(shares, recompute, kernels, storage)
    if recompute == "selective":
        uses = [kernels.use(share, storage) for share in shares]
        return sum(use.kept - use.core for use in uses)
    scattered = split_ways(row, placement.group(block.group).mesh).scattered
    saved = sum(_saved(share, recompute, kernels, storage, scattered) for share in shares)
    return saved + _input_bytes(placement, block, row)


def _saved(share: Share, recompute: Recompute, kernels: KernelSet, storage: Storage, scattered: int) -> float:
    """What a list of saved outputs keeps of one operator: a rank's own positions, of what is summed over the tensor
    ranks and scattered again.
    """
    if not isinstance(recompute, Save):
        return 0.0
    output = storage.element * elements(share.operator, share.work)
    if isinstance(share.operator, Attention) and "attention" in recompute.save:
        return output + kernels.use(share, storage).core
    if is_core(share):
        return 0.0
    saved = 0.0 if is_repeated(share, recompute) else output
    return saved + (output / scattered if share.leaves and "collective" in recompute.save else 0.0)


def _input_bytes(placement: Placement, block: Block, row: Row) -> float:
    width = placement.input_width(block) if row is block.row else block.stack.output
    return _stream_bytes(placement, block, row, width)


def output_bytes(placement: Placement, block: Block) -> float:
    """What a layer hands on of one micro-batch on one rank."""
    return _stream_bytes(placement, block, block.row, block.stack.output)


def _stream_bytes(placement: Placement, block: Block, row: Row, width: float) -> float:
    ways = split_ways(row, placement.group(block.group).mesh)
    numbers = placement.samples * placement.lengths[block.stack.stream] * width
    return placement.element * numbers / (ways.batch * ways.cp * ways.ulysses * ways.scattered)
