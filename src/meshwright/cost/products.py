"""The matrix products of an operator, by shape: what its FLOPs are made of, and what their speed depends on."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from meshwright.model.operators import Attention, Contrast, Convolution, Experts, Linear, MatMul, Operator, Router, Scan
from meshwright.model.work import Work


class Product(NamedTuple):
    """[rows, inner] x [inner, columns], `batch` times. A rank's share of what does not divide may be a fraction."""

    rows: float
    columns: float
    inner: float
    batch: float = 1.0

    @property
    def flops(self) -> float:
        """A multiply and an add count as two."""
        return 2.0 * self.rows * self.columns * self.inner * self.batch

    @property
    def read(self) -> float:
        """Numbers of both operands."""
        return self.batch * self.inner * (self.rows + self.columns)

    @property
    def written(self) -> float:
        """Numbers of the result."""
        return self.batch * self.rows * self.columns

    @property
    def numbers(self) -> float:
        """Read and written, each once."""
        return self.read + self.written

    def by_input(self) -> "Product":
        """Backward, for the gradient of the left operand."""
        return Product(self.rows, self.inner, self.columns, self.batch)

    def by_weight(self) -> "Product":
        """Backward, for the gradient of the right operand."""
        return Product(self.inner, self.columns, self.rows, self.batch)


def products(operator: Operator, work: Work) -> tuple[Product, ...]:
    """The products of a forward; `gradients` are those of backward.

    >>> products(Linear(inputs=4, outputs=8), Work(2, 16, 16))
    (Product(rows=32, columns=8, inner=4, batch=1.0),)

    An attention core has two for each sample and head: scores, and scores times values.

    >>> products(Attention(heads=3, kv_heads=1, head_dim=4), Work(2, 16, 16))
    (Product(rows=16, columns=16, inner=4, batch=6), Product(rows=16, columns=4, inner=16, batch=6))
    """
    shape = _SHAPES.get(type(operator))
    return shape(operator, work) if shape else ()


def _linear(operator: Linear, work: Work) -> tuple[Product, ...]:
    return (Product(work.positions, operator.outputs, operator.inputs),)


def gradients(operator: Operator, found: tuple[Product, ...]) -> tuple[tuple[Product, ...], tuple[Product, ...]]:
    """Backward's products, for what stands on the left and on the right of each of these: both, but of a MatMul only as
    many as operands want a gradient.

    >>> product = Product(4, 8, 16)
    >>> [len(side) for side in gradients(MatMul(inner=16, outputs=8, gradients=1), (product,))]
    [1, 0]
    """
    wanted = operator.gradients if isinstance(operator, MatMul) else 2
    left = tuple(product.by_input() for product in found) if wanted > 0 else ()
    return left, tuple(product.by_weight() for product in found) if wanted > 1 else ()


def _matmul(operator: MatMul, work: Work) -> tuple[Product, ...]:
    return (Product(work.positions, operator.outputs, operator.inner * (work.context if operator.cross else 1)),)


def _contrast(operator: Contrast, work: Work) -> tuple[Product, ...]:
    return (Product(work.samples, work.samples, operator.width),)


def _router(operator: Router, work: Work) -> tuple[Product, ...]:
    return (Product(work.positions, operator.experts, operator.hidden),)


def _core(operator: Attention, work: Work) -> tuple[Product, ...]:
    batch, value_dim = work.samples * operator.heads, operator.value_dim or operator.head_dim
    return (
        Product(work.length, work.context, operator.head_dim, batch),
        Product(work.length, value_dim, work.context, batch),
    )


def _experts(operator: Experts, work: Work) -> tuple[Product, ...]:
    """Positions spread evenly over the experts that are here.

    >>> _experts(Experts(count=4, top_k=2, hidden=8, ffn=24), Work(1, 16, 16))
    (Product(rows=8.0, columns=48, inner=8, batch=4), Product(rows=8.0, columns=8, inner=24, batch=4))
    """
    rows = work.positions * operator.top_k / operator.count
    up = Product(rows, operator.ffn * (2 if operator.gated else 1), operator.hidden, operator.count)
    return up, Product(rows, operator.hidden, operator.ffn, operator.count)


def _convolution(operator: Convolution, work: Work) -> tuple[Product, ...]:
    """As the product of the unfolded input with the kernels (Chetlur 2014, section 3).

    >>> _convolution(Convolution(inputs=3, outputs=8, kernel=(4, 4)), Work(2, 9, 9))
    (Product(rows=18, columns=8.0, inner=48.0, batch=1),)
    """
    taps = math.prod(operator.kernel)
    rows = work.samples * operator.computed_positions(work)
    groups = operator.groups
    return (Product(rows, operator.outputs / groups, operator.inputs / groups * taps, groups),)


def _scan(operator: Scan, work: Work) -> tuple[Product, ...]:
    """Without chunks, as one product whose states never leave the chip (Gu and Dao 2023, section 3.3.2); with chunks,
    as `Scan.chunk_flops` says.
    """
    heads, width, state, length = operator.heads or 1, operator.width, operator.state, operator.chunk
    if length is None:
        return (Product(work.positions, heads * width, state),)
    chunks = math.ceil(work.length / length)
    each, whole = work.samples * chunks * heads, work.samples * heads
    return (
        Product(length, length, state, each),
        Product(length, width, length, each),
        Product(width, state, length, each),
        Product(length, width, state, each),
        Product(chunks + 1, width * state, chunks + 1, whole),
    )


_SHAPES: dict[type, Callable[[Any, Work], tuple[Product, ...]]] = {
    Linear: _linear,
    MatMul: _matmul,
    Contrast: _contrast,
    Router: _router,
    Attention: _core,
    Experts: _experts,
    Convolution: _convolution,
    Scan: _scan,
}
