"""How long operators take: the roofline, max(FLOPs / peak, bytes moved / memory bandwidth), one operator at a time,
with what a device reaches of both (`efficiency`).

Backward does twice the matrix FLOPs of forward: one product for the input's gradient, one for the weight's, each where
it is wanted. Flash attention computes the scores again, and skips what a mask hides (Dao 2022; Dao 2023, section 4.1).
Williams 2009 for the roofline.
"""

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.cluster.spec import Pool
from meshwright.cost.calibration import DeviceConstants
from meshwright.cost.efficiency import Peaks, product_seconds
from meshwright.cost.kernels import KernelSet
from meshwright.cost.placement import Placement
from meshwright.cost.products import Product, gradients, products
from meshwright.cost.shares import Share
from meshwright.cost.uses import Storage
from meshwright.model.operators import Attention, Convolution, Dropout, Experts, Linear, Loss, Router
from meshwright.model.work import Flops
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
    reached: DeviceConstants = DeviceConstants()
    """Of these peaks."""

    @property
    def streamed(self) -> float:
        """Bytes per second that kernels reach which are bound by memory."""
        return self.memory * self.reached.memory


def machines(placement: Placement, group: str) -> list[Machine]:
    return placement.once(
        ("machines", group), lambda: [_machine(placement, pool) for pool, _ in placement.pools(group)]
    )


def _machine(placement: Placement, pool: Pool) -> Machine:
    device, recipe, units = placement.inputs.cluster.devices[pool.device], placement.recipe, pool.compute_units
    busy = _busy(placement, pool)
    compute = device.peak[recipe.precision.compute]
    matmul = device.peak[recipe.precision.matmul or recipe.precision.compute]
    slowdown = max(1.0, busy / units) if units else 1.0
    return Machine(compute, matmul, device.memory_bandwidth, slowdown, placement.calibration.device(pool.device))


def _busy(placement: Placement, pool: Pool) -> int:
    """Ranks that the plan runs on a pool."""
    return sum(count for name in placement.plan.groups for used, count in placement.pools(name) if used is pool)


class Seconds(NamedTuple):
    """The computing of one layer for one micro-batch."""

    forward: float = 0.0
    recompute: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    """Of backward, the gradients of the weights."""

    def plus(self, other: "Seconds") -> "Seconds":
        """Both together."""
        return Seconds(*(one + more for one, more in zip(self, other, strict=True)))

    def slower(self, times: float) -> "Seconds":
        """So many times as long."""
        return Seconds(*(times * one for one in self))


def operator_seconds(share: Share, kernels: KernelSet, storage: Storage, machine: Machine) -> Seconds:
    """One operator, without recompute.

    >>> from meshwright.cost.kernels import KERNEL_SETS
    >>> from meshwright.model.work import Work
    >>> share = Share(Linear(inputs=1024, outputs=4096), Work(1, 512, 512), learns=True, passes=True)
    >>> operator_seconds(share, KERNEL_SETS["hf-sdpa"], Storage(), Machine(1e12, 1e12, 1e12))[:3]
    (0.004294967296, 0.0, 0.008589934592)
    """
    moved = kernels.use(share, storage).moved / machine.streamed
    if isinstance(share.operator, Attention) and kernels.is_flash(share, storage):
        forward, by_input, by_weight = (*_flash(share, machine), 0.0)
    else:
        forward, by_input, by_weight = _products(share, storage, machine)
    found = Seconds(max(forward, moved))
    if share.passes or share.learns:
        backward = max(by_input * share.passes + by_weight * share.learns, 2 * moved)
        found = found._replace(backward=backward, weight=by_weight * share.learns)
    return found.slower(machine.slowdown)


def _flash(share: Share, machine: Machine) -> tuple[float, float]:
    """Forward, and backward with the scores computed again: of what the mask leaves."""
    flops = share.operator.flops(share.work)
    seen, reached = _seen(flops), machine.reached
    forward = flops.forward * seen / (machine.compute * reached.flash)
    return forward, (flops.by_input + flops.again) * seen / (machine.compute * reached.flash_backward)


def _products(share: Share, storage: Storage, machine: Machine) -> tuple[float, float, float]:
    """Forward, and backward's products for the gradient of the input and of the weight."""
    by_weights = isinstance(share.operator, Linear | Experts | Convolution)
    peaks = Peaks(machine.matmul if by_weights else machine.compute, machine.memory, storage.element)
    found, batched = products(share.operator, share.work), isinstance(share.operator, Attention)

    def seconds(shapes: Iterable[Product]) -> float:
        return sum(product_seconds(shape, peaks, machine.reached, batched=batched) for shape in shapes)

    both = tuple(seconds(side) for side in gradients(share.operator, found))
    has_weight = by_weights or isinstance(share.operator, Router)
    return (seconds(found), *(both if has_weight else (sum(both), 0.0)))


def needed_flops(share: Share) -> float:
    """Matrix FLOPs that the model needs of an operator, forward and backward, whatever the kernels do."""
    flops = share.operator.flops(share.work)
    return (flops.forward + _backward(share, flops)) * _seen(flops)


def _backward(share: Share, flops: Flops) -> float:
    return flops.by_input * share.passes + flops.by_weight * share.learns


def _seen(flops: Flops) -> float:
    """The share of an operator's products that no mask hides."""
    return 1 - flops.masked / flops.forward if flops.forward else 1.0


def layer_seconds(
    shares: Iterable[Share], recompute: Recompute, kernels: KernelSet, storage: Storage, machine: Machine
) -> Seconds:
    """The computing of one layer's operators for one micro-batch, on one device."""
    total = Seconds()
    for share in shares:
        one = operator_seconds(share, kernels, storage, machine)
        again = one.forward if one.backward and is_repeated(share, recompute) else 0.0
        total = total.plus(one._replace(recompute=again))
    return total


def is_core(share: Share) -> bool:
    """Whether an operator belongs to the core attention, which selective recompute computes again."""
    operator = share.operator
    return isinstance(operator, Attention) or (isinstance(operator, Dropout) and operator.of == "attention")


def is_repeated(share: Share, recompute: Recompute) -> bool:
    """Whether recompute runs an operator again: not the loss, whose backward follows at once."""
    if isinstance(share.operator, Loss):
        return False
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
