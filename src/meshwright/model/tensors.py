"""The parameters of an operator as the tensors that an optimizer meets: matrices by their shape, and the rest."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from meshwright.model.operators import Convolution, Embedding, Experts, Linear, Loss, Operator, Parameter, Router

Kind = Literal["matrix", "table", "vector"]
"""`matrix`: a hidden layer's, which maps what one layer puts out to what the next takes in. `table`: another tensor of
two or more dimensions: embeddings, the matrix that the loss reads, kernels of convolutions, a module's own parameters.
`vector`: gains, biases, sinks.
"""


class Tensor(NamedTuple):
    """[batch, rows, columns]: a batch of equal matrices, which is one where a matrix is stored by itself. All vectors
    of an operator together are one column.
    """

    kind: Kind
    rows: int
    columns: int = 1
    batch: int = 1

    @property
    def numbers(self) -> int:
        """In all."""
        return self.batch * self.rows * self.columns


def tensors(operator: Operator, *, read_by_loss: bool = False) -> tuple[Tensor, ...]:
    """The tensors of an operator, as the modules store them: a matrix that is fused of several (`segments`, gate and up
    of experts) is one. Experts are stored together and have a matrix each.

    >>> tensors(Linear(inputs=4, outputs=8, bias=True))
    (Tensor(kind='matrix', rows=8, columns=4, batch=1), Tensor(kind='vector', rows=8, columns=1, batch=1))
    >>> [(each.rows, each.columns, each.batch) for each in tensors(Experts(count=6, top_k=2, hidden=4, ffn=8))]
    [(16, 4, 6), (4, 8, 6)]
    """
    shape = _SHAPES.get(type(operator))
    found = shape(operator) if shape else ()
    if read_by_loss:
        found = tuple(each._replace(kind="table") for each in found)
    left = operator.parameters() - sum(each.numbers for each in found)
    return (*found, Tensor("vector", left)) if left else found


def read_by_loss(operators: Iterable[Operator]) -> frozenset[str]:
    """The paths of the last matrices before a loss: heads.

    >>> ends = [Linear(path="transform", inputs=4, outputs=4), Linear(path="decoder", inputs=4, outputs=9)]
    >>> sorted(read_by_loss([*ends, Loss(classes=9)]))
    ['decoder']
    """
    found, last = set(), None
    for operator in operators:
        if isinstance(operator, Linear):
            last = operator.path
        elif isinstance(operator, Loss) and last is not None:
            found.add(last)
    return frozenset(found)


def has_matrices(operators: Iterable[Operator]) -> bool:
    """Whether any of these has a hidden matrix."""
    every = tuple(operators)
    heads = read_by_loss(every)
    return any(
        each.kind == "matrix" for operator in every for each in tensors(operator, read_by_loss=operator.path in heads)
    )


def _linear(operator: Linear) -> tuple[Tensor, ...]:
    return () if operator.tied else (Tensor("matrix", operator.outputs, operator.inputs),)


def _embedding(operator: Embedding) -> tuple[Tensor, ...]:
    return () if operator.tied else (Tensor("table", operator.rows, operator.width),)


def _router(operator: Router) -> tuple[Tensor, ...]:
    return (Tensor("matrix", operator.experts, operator.hidden),)


def _experts(operator: Experts) -> tuple[Tensor, ...]:
    into = Tensor("matrix", operator.ffn * (2 if operator.gated else 1), operator.hidden, operator.count)
    return into, Tensor("matrix", operator.hidden, operator.ffn, operator.count)


def _convolution(operator: Convolution) -> tuple[Tensor, ...]:
    """[outputs, inputs / groups, *kernel], and inputs before outputs where it is transposed."""
    outer, inner = operator.outputs, operator.inputs // operator.groups
    if operator.transposed:
        outer, inner = operator.inputs, operator.outputs // operator.groups
    return _table((outer, inner, *operator.kernel))


def _parameter(operator: Parameter) -> tuple[Tensor, ...]:
    return _table(operator.shape) if len(operator.shape) > 1 else ()


def _table(shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    *outer, rows, columns = shape
    return (Tensor("table", rows, columns, math.prod(outer)),)


_SHAPES: dict[type, Callable[[Any], tuple[Tensor, ...]]] = {
    Linear: _linear,
    Embedding: _embedding,
    Router: _router,
    Experts: _experts,
    Convolution: _convolution,
    Parameter: _parameter,
}
