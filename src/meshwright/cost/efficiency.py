"""How much of a device's peak single kernels reach: by shape, kind and dtype, from few constants (`calibration`).

Never more than the peak, so that no time lies under the roofline (Williams 2009):

    a matrix product   FLOPs / (peak · fraction) · tiles · (1 + inner / K), or its bytes / (bandwidth · fraction)
    flash attention    FLOPs that the mask leaves / peak · (1 / fraction + softmax / head width) · (1 + edge / context)
    anything else      bytes / (bandwidth · fraction)

`tiles` is what is computed over what is wanted, when an output of M x N is cut into tiles of which each unit (a
multiprocessor) makes one at a time: the last tiles of a row or column stick out, and the last wave leaves units idle
(NVIDIA, Matrix Multiplication Background User's Guide, sections 3.1 and 3.2). K, the length of the sums, has to fill
and drain a tile's pipeline: `inner` is the length at which that doubles the time. Between its two products, flash
attention takes an exponential of each score, for which a multiprocessor has few units: `softmax` is the head dimension
at which they take as long as the products at the peak (Shah 2024, "FlashAttention-3", section 2.2, has the rates of an
H100). Short sequences pay for their ends, and for tiles that a causal mask cuts (the same paper, figures 5 and 6).
"""

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from meshwright.cost.calibration import DeviceConstants
from meshwright.cost.casts import Narrow
from meshwright.cost.products import Product

TILES: tuple[tuple[int, int, float], ...] = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.93),
    (128, 64, 0.8),
    (64, 128, 0.8),
    (64, 64, 0.6),
)
"""Rows, columns, and the speed of a tile against the largest: small ones read each number for fewer products. The sizes
are those of cuBLAS and CUTLASS; the speeds follow the guide's figure 6 (256 x 128 against 64 x 64 on an A100)."""


SPLITS = (1, 2, 4, 8, 16, 32, 64)
"""Pieces into which the sums of a product may be cut, so that few tiles with long sums fill all units (split-K)."""


def tile_waste(product: Product, units: int, inner: float = 0.0) -> float:
    """Time over that of perfect tiles, with the best of the tile sizes and pieces of the sums; 1 for a device of one
    unit, which has no tiles. `inner`: the length of a piece's sums at which filling and draining double its time.

    One tile more than there are units takes a wave of its own:

    >>> tile_waste(Product(128 * 11, 256 * 12, 1024), units=132)
    1.0
    >>> round(tile_waste(Product(128 * 11 + 1, 256 * 12, 1024), units=132), 2)
    1.21

    A small output with long sums is cut along these:

    >>> round(tile_waste(Product(64, 64, 200_000), units=132), 2)
    3.44
    """
    if units <= 1:
        return 1 + inner / product.inner
    whole = tile_wastes(product, units)
    return max(1.0, min([waste * (1 + inner * pieces / product.inner) for pieces, waste in whole]))


@lru_cache(maxsize=16384)
def tile_wastes(product: Product, units: int) -> tuple[tuple[int, float], ...]:
    """For each number of pieces of the sums, the waste of the best tiles, before pieces are filled and drained."""
    wanted = product.rows * product.columns * product.batch
    tiles = [
        (ceil(product.rows / rows) * ceil(product.columns / columns) * product.batch, rows, columns, speed)
        for rows, columns, speed in TILES
    ]
    return tuple(
        (pieces, min([_waves(count, pieces, units) * units * a * b / wanted / speed for count, a, b, speed in tiles]))
        for pieces in SPLITS
        if pieces == 1 or product.inner / pieces >= _SHORTEST
    )


def _waves(tiles: float, pieces: int, units: int) -> float:
    return ceil(tiles * pieces / units) / pieces


_SHORTEST = 256
"""Sums shorter than this are not cut."""


class Peaks(NamedTuple):
    """What a matrix product runs against."""

    compute: float
    """FLOP per second."""
    memory: float
    """Bytes per second."""
    element: float
    """Bytes of a number that is read."""
    result: float = 0.0
    """Of one that is written, where that is another."""
    faster: float = 1.0
    """Than products in the compute dtype: the reads that begin and end a tile are not, so that sums are to be as much
    longer to hide them."""


def is_aligned(product: Product) -> bool:
    """Whether rows of the operands and of the result are whole multiples of eight numbers, 16 bytes in two-byte dtypes,
    which tensor cores are fed in (NVIDIA, Matrix Multiplication Background User's Guide, section 3.1). A share that is
    no whole number is not one of a real row.

    >>> is_aligned(Product(2048, 2048, 150)), is_aligned(Product(2048, 50257, 768)), is_aligned(Product(1, 64, 64))
    (False, False, True)
    """
    return not (product.inner % 8 and product.inner == int(product.inner)) and not (
        product.columns % 8 and product.columns == int(product.columns)
    )


def product_seconds(
    product: Product, peaks: Peaks, constants: DeviceConstants, *, batched: bool = False, narrow: Narrow | None = None
) -> float:
    """Seconds of one matrix product; `batched`: one of the many small ones of attention; `narrow`: in fp8 or fp4.

    Without losses FLOPs over the peak, or bytes over the bandwidth (Williams 2009); sums as short as `inner` double it:

    >>> cube = Product(4096, 4096, 4096)
    >>> product_seconds(cube, Peaks(1e12, 1e12, 2), DeviceConstants()) == cube.flops / 1e12
    True
    >>> product_seconds(cube, Peaks(1e12, 1e12, 2), DeviceConstants(inner=4096)) == 2 * cube.flops / 1e12
    True
    >>> product_seconds(Product(1, 1000, 1000), Peaks(1e12, 1e9, 2), DeviceConstants())
    0.002004
    """
    if not product.flops:
        return 0.0
    fraction = constants.batched if batched else constants.matmul
    if narrow:
        fraction *= constants.narrow * (constants.by_rows if narrow.by_rows else 1.0)
    if not is_aligned(product):
        fraction *= constants.unaligned_batched if batched else constants.unaligned
    waste = tile_waste(product, constants.units, constants.inner * peaks.faster)
    compute = product.flops / (peaks.compute * fraction) * waste
    moved = product.read * peaks.element + product.written * (peaks.result or peaks.element)
    return max(compute, moved / (peaks.memory * constants.memory))
