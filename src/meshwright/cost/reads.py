"""Which tensors the operators of a layer read, so that one which several of them keep is counted once."""

from meshwright.model.operators import Attention, Linear, MatMul, Norm, Operator, Router


class Reads:
    """Goes through a layer's operators in order. A tensor is known by its stream and width: matrices and routers that
    read one width read one tensor, until an operator of another kind makes a new one of that width.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str | None, int], bool] = {}
        self._first: tuple[str | None, int] | None = None
        self._first_kept = False
        self._begins_with_norm = self._beside = False
        self._inside_first = True
        self._matrices = 0

    def count(self, operator: Operator) -> int:
        """How many matrices there were up to this operator, which is one; 0 of others."""
        self._matrices += isinstance(operator, Linear)
        return self._matrices if isinstance(operator, Linear) else 0

    def next_part(self, operators: tuple[Operator, ...], *, parallel: bool) -> None:
        """A part begins. A parallel one reads what the first one reads, until it has a norm of its own."""
        self._inside_first = self._first is None and not parallel
        self._beside = parallel
        if self._inside_first:
            self._begins_with_norm = bool(operators) and isinstance(operators[0], Norm)
        self._kept = {self._first: self._first_kept} if parallel and self._first else {}

    def is_fresh(self, operator: Operator, *, keeps: bool) -> bool:
        """Whether nobody keeps an operator's input yet; `keeps`: it does so itself."""
        if isinstance(operator, Router) and operator.wide:
            return True  # a copy of its own
        if isinstance(operator, Linear | Router):
            return self._is_read_first(operator, keeps=keeps)
        if isinstance(operator, Norm) and operator.heads is None:
            again, self._beside = self._beside and self._begins_with_norm, False
            self._kept.pop((operator.stream, operator.width), None)
            return not again
        self._kept.pop((operator.stream, _made(operator)), None)
        return True

    def _is_read_first(self, operator: Linear | Router, *, keeps: bool) -> bool:
        if isinstance(operator, Linear) and operator.split == "row":
            self._kept.clear()
            self._inside_first = False
            return True
        key = (operator.stream, operator.inputs if isinstance(operator, Linear) else operator.hidden)
        before = self._kept.get(key, False)
        self._kept[key] = before or keeps
        if self._inside_first and self._first in (None, key):
            self._first, self._first_kept = key, before or keeps
        return not before


def _made(operator: Operator) -> int:
    """The width of the tensor that an operator makes."""
    match operator:
        case Attention():
            return operator.heads * (operator.value_dim or operator.head_dim)
        case MatMul():
            return operator.outputs
    return int(vars(operator).get("width", 0))
