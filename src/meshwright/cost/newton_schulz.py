"""Muon's products: five Newton-Schulz steps make the momentum of each hidden matrix nearly orthogonal (Jordan 2024).

They need the whole of a matrix. Here it has an owner: the ranks that share matrices deal them out evenly, bring the
momentum of each to its owner by one all-to-all, and take their slices of the result back by another (Ahn 2025, "Dion:
Distributed Orthonormalized Updates", whose published code runs Muon so on FSDP2's shards). In Liu 2025 ("Muon is
Scalable for LLM Training", algorithm 1) a rank gathers the whole of each matrix that it has a part of, and computes all
of it; where states cut every matrix, as here, that moves and multiplies more. Ranks that hold equal matrices whole (dp
without a state) all compute the same, as torch.optim.Muon does. A matrix that the model stores fused (queries, keys and
values; gate and up) is one matrix.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from meshwright.cost.blocks import Block
from meshwright.cost.compute import Machine, machines
from meshwright.cost.efficiency import Peaks, product_seconds
from meshwright.cost.optimizers import ORTHOGONAL, makes_orthogonal, passes_of
from meshwright.cost.placement import Placement
from meshwright.cost.products import Product
from meshwright.cost.slices import Stepped, stepped_by
from meshwright.recipe.spec import BYTES, Recipe

STEPS = 5
"""Jordan 2024; torch.optim.Muon's default."""


def newton_schulz(rows: float, columns: float) -> tuple[Product, ...]:
    """The products of one step on [m, n] with m <= n: A = X Xᵀ, A A, and (b A + c A A) X: 4 m² n + 2 m³ FLOPs.

    >>> sum(product.flops for product in newton_schulz(4, 2)) == 4 * 2**2 * 4 + 2 * 2**3
    True
    """
    short, long = sorted((rows, columns))
    return Product(short, short, long), Product(short, short, short), Product(short, long, short)


def owned(recipe: Recipe, stepped: Stepped, layers: int) -> dict[tuple[int, int], float]:
    """How many matrices of each shape the busiest rank makes orthogonal, in the mean over so many equal layers. Those
    of one shape are dealt out together, and none in parts: of 3 x 2 over 4 ranks one has two.

    >>> from meshwright.cost.slices import Slice
    >>> from meshwright.model.tensors import Tensor
    >>> square, muon = Tensor("matrix", 8, 8), {"optimizer": {"name": "muon"}, "global_batch": 1, "sequence": 1}
    >>> two = Stepped((Slice(square, square),) * 2, ("dp",), 4, (), 1)
    >>> owned(Recipe.model_validate(muon), two, layers=3)
    {(8, 8): 0.6666666666666666}
    """
    dealt: Counter[tuple[int, int, int]] = Counter()
    for each in stepped.slices:
        if passes_of(recipe, each.own).orthogonal:
            short, long = sorted((each.whole.rows, each.whole.columns))
            dealt[short, long, stepped.ways * (stepped.ranks if each.is_cut else 1)] += each.own.batch * layers
    found: defaultdict[tuple[int, int], float] = defaultdict(float)
    for (short, long, owners), count in dealt.items():
        found[short, long] += math.ceil(count / owners) / layers
    return dict(found)


def dealt_out(recipe: Recipe, layers: int) -> int:
    """Of so many equal layers, those whose matrices are dealt out together; one where none has an owner."""
    return layers if makes_orthogonal(recipe) else 1


def orthogonal_seconds(placement: Placement, block: Block) -> list[float]:
    """Seconds of Newton-Schulz for one layer of a block, on the busiest rank, for each kind of device of its group. A
    device without a rate in bf16 multiplies in the compute dtype.
    """
    layers = dealt_out(placement.recipe, len(block.names))
    every = [owned(placement.recipe, stepped, layers) for stepped in stepped_by(placement, block)]
    shapes = [(shape, count) for each in every for shape, count in each.items()]
    return [
        _seconds(shapes, machine, placement.inputs.cluster.devices[pool.device].peak.get(ORTHOGONAL, machine.compute))
        for machine, (pool, _) in zip(machines(placement, block.group), placement.pools(block.group), strict=True)
    ]


def _seconds(shapes: Iterable[tuple[tuple[int, int], float]], machine: Machine, peak: float) -> float:
    peaks = Peaks(peak, machine.memory, BYTES[ORTHOGONAL])
    return sum(
        STEPS * count * product_seconds(product, peaks, machine.reached)
        for shape, count in shapes
        for product in newton_schulz(*shape)
    )
