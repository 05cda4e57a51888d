"""What one stage of a plan takes on a rank, all its layers together: states, activations, and what passes."""

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.cost.activations import Activations, layer_activations, output_bytes
from meshwright.cost.blocks import Block
from meshwright.cost.layer_states import States, layer_states
from meshwright.cost.placement import Placement
from meshwright.cost.saved import looked_at
from meshwright.cost.ways import split_ways


class StageBytes(NamedTuple):
    """What one stage of a group takes on a rank, all its layers together."""

    states: States
    activations: Activations
    """Of one micro-batch."""
    window: float
    """The most that a layer's gathered parameters and those gathered ahead of it take together."""
    passing: dict[str, float]
    """What one layer needs while it runs backward, or the loss."""
    unlike: float
    """What the other of the two needs: tensors of other sizes, at another time."""


def stage_bytes(placement: Placement, stage: int) -> StageBytes:
    """What one stage takes; equal ones are counted once."""
    key = ("stage", tuple(map(placement.sharded_alike, placement.stage_layers[stage])))
    return placement.once(key, lambda: _count_stage(placement, stage))


def _count_stage(placement: Placement, stage: int) -> StageBytes:
    blocks = placement.stage_blocks(stage)
    states = {block: layer_states(placement, block) for block in blocks}
    layers = [layer_activations(placement, block) for block in blocks]
    total, kept = States(), Activations()
    for block, each in zip(blocks, layers, strict=True):
        total = total.plus(states[block], len(block.names))
        kept = kept.plus(each, len(block.names))
    together = _looked_at(placement, blocks)
    together += _handed_on(placement, stage)
    kept = kept.plus(Activations(kept=together, whole=together, weights=together * placement.kernels.retains))
    layer = {
        "recomputed": max(each.whole - each.kept for each in layers),
        "reduced": max(each.reduced for each in states.values()),
    }
    # The loss is through with its backward before the first layer begins.
    loss, alone = {"loss": kept.passing}, sum(layer.values()) < kept.passing
    passing = dict.fromkeys(layer, 0.0) | loss if alone else layer | {"loss": 0.0}
    window = most_together(
        [states[block].gathered for block in placement.stage_layers[stage]], gathered_ahead(placement)
    )
    return StageBytes(total, kept, window, passing, min(layer["recomputed"], kept.passing))


def _looked_at(placement: Placement, blocks: Sequence[Block]) -> float:
    """What other layers put out that attention of a stage looks at (an encoder's output), which all keep together."""
    found = 0.0
    for stream, width in looked_at(block.stack for block in blocks).items():
        block = next(block for block in blocks if stream in looked_at([block.stack]))
        ways = split_ways(block.row, placement.group(block.group).mesh)
        scattered = ways.scattered if placement.kernels.gathers_again else 1
        numbers = placement.samples * placement.lengths[stream] * width
        found += placement.element * numbers / (ways.batch * ways.cp * ways.ulysses * scattered)
    return found


def _handed_on(placement: Placement, stage: int) -> float:
    """What a stage hands to the next, where the implementation keeps it for backward to begin from (DeepSpeed,
    runtime/pipe/engine.py, `pipe_buffers["outputs"]`, 2022).
    """
    if not placement.kernels.hands_on_copies or stage + 1 == len(placement.plan.stages):
        return 0.0
    return output_bytes(placement, placement.stage_layers[stage][-1])


def gathered_ahead(placement: Placement) -> int:
    """Layers whose parameters are gathered while another one computes. What is gathered matrix by matrix is little
    ahead (DeepSpeed's `stage3_prefetch_bucket_size`, 5e7 numbers).
    """
    return 0 if placement.kernels.gathers_matrices else placement.plan.execution.prefetch


def most_together(sizes: Sequence[float], prefetch: int) -> float:
    """The most that a layer and so many gathered ahead of it take together.

    >>> most_together([1.0, 2.0, 3.0, 1.0], prefetch=1)
    5.0
    """
    wide = 1 + prefetch
    return max(sum(sizes[first : first + wide]) for first in range(len(sizes)))
