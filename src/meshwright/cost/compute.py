"""How long operators take: the roofline, max(FLOPs / peak, bytes moved / memory bandwidth), one operator at a time.

Backward does twice the matrix FLOPs of forward: one product for the input's gradient, one for the weight's, each where
it is wanted. Flash attention computes the scores again, so its backward is 2.5 times its forward, and it skips what a
causal mask hides (Dao 2022; Dao 2023, section 4.1). Williams 2009 for the roofline.
"""

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.cluster.spec import Pool
from meshwright.cost.kernels import KernelSet
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.cost.uses import Storage
from meshwright.model.operators import Attention, Convolution, Dropout, Experts, Linear, Router
from meshwright.plan.spec import Recompute, Save
from meshwright.recipe.spec import BYTES, Recipe


class Machine(NamedTuple):
    """One device as a stage's work sees it."""

    compute: float
    """FLOP per second in the compute dtype."""
    matmul: float
    """FLOP per second of matrix products of activations with weights."""
    memory: float
    """Bytes per second."""
    slowdown: float = 1.0
    """Ranks for each of the compute units that their pool shares."""


def machines(placement: Placement, group: str) -> list[Machine]:
    return placement.once(
        ("machines", group), lambda: [_machine(placement, pool) for pool, _ in placement.pools(group)]
    )


def _machine(placement: Placement, pool: Pool) -> Machine:
    device, recipe, units = placement.inputs.cluster.devices[pool.device], placement.recipe, pool.compute_units
    busy = _busy(placement, pool)
    compute = device.peak[recipe.precision.compute]
    matmul = device.peak[recipe.precision.matmul or recipe.precision.compute]
    return Machine(compute, matmul, device.memory_bandwidth, max(1.0, busy / units) if units else 1.0)


def _busy(placement: Placement, pool: Pool) -> int:
    """Ranks that the plan runs on a pool."""
    return sum(count for name in placement.plan.groups for used, count in placement.pools(name) if used is pool)


class Seconds(NamedTuple):
    """The computing of one layer for one micro-batch."""

    forward: float = 0.0
    recompute: float = 0.0
    backward: float = 0.0

    def plus(self, other: "Seconds") -> "Seconds":
        """Both together."""
        return Seconds(*(one + more for one, more in zip(self, other, strict=True)))


class Costs(NamedTuple):
    """One operator: matrix FLOPs and bytes, each way."""

    flops: float
    backward_flops: float
    moved: float
    by_weights: bool

    def seconds(self, machine: Machine) -> tuple[float, float]:
        """(forward, backward) by the roofline."""
        peak = machine.matmul if self.by_weights else machine.compute
        forward = max(self.flops / peak, self.moved / machine.memory)
        backward = max(self.backward_flops / peak, 2 * self.moved / machine.memory)
        return forward * machine.slowdown, backward * machine.slowdown


def costs(share: Share, kernels: KernelSet, storage: Storage) -> Costs:
    """What one operator computes and moves.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.operators import Work
    >>> share = Share(Linear(inputs=1024, outputs=4096), Work(1, 512, 512), learns=True, passes=True)
    >>> costs(share, KERNEL_SETS["hf-sdpa"], Storage())[:3]
    (4294967296.0, 8589934592.0, 13631488)
    """
    flash = isinstance(share.operator, Attention) and kernels.is_flash(share, storage)
    flops = share.operator.flops(share.work) * (_seen(share) if flash else 1.0)
    backward = flops * (2.5 * share.passes if flash else _products(share))
    by_weights = isinstance(share.operator, Linear | Experts | Convolution)
    return Costs(flops, backward, kernels.use(share, storage).moved, by_weights)


def needed_flops(share: Share) -> float:
    """Matrix FLOPs that the model needs of an operator, forward and backward, whatever the kernels do."""
    return share.operator.flops(share.work) * _seen(share) * (1 + _products(share))


def _products(share: Share) -> int:
    """Backward's matrix products for each of forward's."""
    if isinstance(share.operator, Attention):
        return 2 * share.passes
    return share.passes + (share.learns and isinstance(share.operator, Linear | Experts | Router | Convolution))


def _seen(share: Share) -> float:
    """The share of the counted scores that a causal mask leaves: half, or more where a window is narrow."""
    core, context = share.operator, share.work.context
    if not isinstance(core, Attention) or not core.causal or core.cross:
        return 1.0
    return 1 - min(context, core.window or context) / (2 * context)


def layer_seconds(
    shares: Iterable[Share], recompute: Recompute, kernels: KernelSet, storage: Storage, machine: Machine
) -> Seconds:
    """The computing of one layer's operators for one micro-batch, on one device."""
    total = Seconds()
    for share in shares:
        forward, backward = costs(share, kernels, storage).seconds(machine)
        wanted = share.passes or share.learns
        again = forward if wanted and is_repeated(share, recompute) else 0.0
        total = total.plus(Seconds(forward, again, backward if wanted else 0.0))
    return total


def is_core(share: Share) -> bool:
    """Whether an operator belongs to the core attention, which selective recompute computes again."""
    operator = share.operator
    return isinstance(operator, Attention) or (isinstance(operator, Dropout) and operator.of == "attention")


def is_repeated(share: Share, recompute: Recompute) -> bool:
    """Whether recompute runs an operator again."""
    if isinstance(recompute, Save):
        matmul = isinstance(share.operator, Linear | Experts | Router | Convolution)
        return not ((matmul and "matmul" in recompute.save) or (is_core(share) and "attention" in recompute.save))
    return recompute == "full" or (recompute == "selective" and is_core(share))


def optimizer_bytes(recipe: Recipe, learning: float) -> float:
    """What the optimizer's step reads and writes for so many parameters of a rank: the gradient, once more where it is
    clipped; every moment, and the master copy where there is one, twice; and the parameter, which is only written where
    there is a master copy.

    >>> optimizer_bytes(Recipe(global_batch=1, sequence=1), 1.0)
    34.0
    """
    precision, optimizer = recipe.precision, recipe.optimizer
    gradient = BYTES[precision.reduce] * (1 + (recipe.clip_norm is not None))
    moments = 2 * optimizer.moments * BYTES[optimizer.state]
    master = master_bytes(recipe)
    return learning * (gradient + moments + 2 * master + BYTES[precision.compute] * (1 if master else 2))


def master_bytes(recipe: Recipe) -> float:
    """Bytes of the optimizer's own copy of a parameter; none where it has the dtype that is computed with anyhow."""
    precision = recipe.precision
    return BYTES[precision.master] if precision.master and precision.master != precision.compute else 0.0
