"""Bytes of a layer's states on one rank: parameters, gradients, what the optimizer keeps; on device and host."""

from typing import NamedTuple

from meshwright.cost.blocks import Block
from meshwright.cost.optimizers import master_bytes, state_bytes
from meshwright.cost.placement import Placement
from meshwright.cost.slices import stepped_by
from meshwright.cost.states import Parameters, sharding_of
from meshwright.cost.volumes import held_by, widths_of
from meshwright.plan.spec import Row


class States(NamedTuple):
    """Bytes of one layer's states on one rank."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0
    """The parameters whole, where a state or offload keeps them elsewhere."""
    reduced: float = 0.0
    """The gradients whole, before they are scattered after a micro-batch."""
    widened: float = 0.0
    """What the optimizer makes on its way: the gradients once more, where they add up in a narrower dtype than the
    master copy has (Megatron-LM's main gradients, DeepSpeed's fp32 partition), and what `KernelSet.step_copies` and
    `bucket` say."""

    def plus(self, other: "States", times: int = 1) -> "States":
        """Both together, the other so many times."""
        return States(*(one + times * more for one, more in zip(self, other, strict=True)))


def layer_states(placement: Placement, block: Block) -> States:
    """One layer of a block. With bf16 parameters and gradients, fp32 master copy and Adam's two fp32 moments these are
    2 + 2 + 12 bytes a parameter (Rajbhandari 2020, section 3.1); the default recipe adds gradients up in fp32, which
    makes 2 + 4 + 12. Of two ranks under zero1 each has half of the last.

    >>> import meshwright as mw
    >>> from meshwright.plan.rules import Inputs
    >>> given = mw.model("gpt2"), mw.cluster("2xh100"), mw.recipe(global_batch=4, sequence=8)
    >>> placement = Placement(Inputs(mw.uniform_plan(*given, zero=1), *given))
    >>> block = placement.block_of["decoder.0"]
    >>> [size / block.stack.parameters for size in layer_states(placement, block)[:3]]
    [2.0, 4.0, 6.0]
    """
    return _layer_states(placement, block)[0]


def states_away(placement: Placement, block: Block) -> States:
    """What the host keeps of one layer of a block for one rank."""
    return _layer_states(placement, block)[1]


def _layer_states(placement: Placement, block: Block) -> tuple[States, States]:
    """What the device keeps and what the host keeps."""
    return placement.once(("states", placement.sharded_alike(block)), lambda: _count_states(placement, block))


def _count_states(placement: Placement, block: Block) -> tuple[States, States]:
    here, away = States(), States()
    for (row, held), stepped in zip(held_by(placement, block), stepped_by(placement, block), strict=True):
        kept = state_bytes(placement.recipe, stepped.own, stepped.ways)
        on_device, on_host = _row_states(placement, block, placement.state_row(block, row), held, kept)
        here, away = here.plus(on_device), away.plus(on_host)
    return here, away


def _row_states(
    placement: Placement, block: Block, row: Row, held: Parameters, optimizer: float
) -> tuple[States, States]:
    """What the device keeps and what the host keeps, with so many bytes of optimizer states. Where the optimizer is on
    the host, so are gradients that are scattered after each micro-batch (Ren 2021), and others come to it at the end
    of the step. Frozen weights rest as they are multiplied, where that is narrow (NVIDIA's LoRA of MLPerf, whose 70B
    take 82 GB with all that they keep, `validation/data/mlperf.csv`).
    """
    widths, sharding = widths_of(placement), sharding_of(row, placement.group(block.group).mesh)
    scattered = sharding.scatters(placement.plan.execution.sync)
    whole, gradients = widths.element * held.all, widths.gradient * held.learning
    if placement.kernels.has_buckets and widths.gradient > widths.element and (sharding.shard or sharding.replicas):
        gradients += widths.element * held.learning
    wide = master_bytes(placement.recipe)
    stepped_with = wide * (wide > widths.gradient) + (wide or widths.element) * placement.kernels.step_copies
    stepped_with += widths.gradient * (placement.kernels.bucket > 0)
    stepped, stored = row.offload.optimizer is not None, row.offload.parameters is not None  # on the host
    at_once = _largest_share(placement, block) if placement.kernels.gathers_matrices else 1.0
    masters = sharding.state == "zero3" and placement.kernels.shards_masters and wide > 0 and not (stepped or stored)
    frozen = held.frozen * (placement.storage(block.group).narrow or widths.element)
    parameters = (frozen + (0.0 if masters else widths.element * held.learning)) / sharding.kept("zero3")
    here = States(
        parameters=0.0 if stored else parameters,
        gradients=0.0 if scattered and stepped else gradients / (sharding.ways if scattered else 1),
        optimizer=0.0 if stepped else optimizer,
        gathered=whole * at_once if stored or sharding.state == "zero3" else 0.0,
        reduced=gradients * at_once if scattered else 0.0,
        widened=0.0 if stepped else stepped_with * held.learning / sharding.ways,
    )
    away = States(
        parameters=parameters if stored else 0.0,
        gradients=gradients / sharding.ways if stepped else 0.0,
        optimizer=optimizer if stepped else 0.0,
    )
    return here, away


def _largest_share(placement: Placement, block: Block) -> float:
    """Of a layer's parameters, those of its largest operator."""
    sizes = [share.operator.parameters() for _, _, shares in placement.row_shares(block) for share in shares]
    return max(sizes, default=0) / (sum(sizes) or 1)
