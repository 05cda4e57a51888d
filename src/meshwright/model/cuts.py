"""What tensor parallelism finds in a part: the operators between a matrix that is cut by output and one by input."""

from collections.abc import Iterable, Iterator

from meshwright.model.operators import Attention, Linear, Operator


def between_cuts(operators: Iterable[Operator]) -> Iterator[Operator]:
    """The operators that work on the heads or channels of one rank alone.

    >>> from meshwright.model.resolve import from_catalog
    >>> parts = from_catalog("qwen3-8b").layers[1].stack.parts
    >>> [operator.op for operator in between_cuts(parts[0].operators)]
    ['norm', 'norm', 'rotary', 'attention']
    """
    inside = False
    for operator in operators:
        split = operator.split if isinstance(operator, Linear) else None
        if inside and split is None:
            yield operator
        inside = split == "column" if split else inside


def fuses_heads(operators: Iterable[Operator]) -> bool:
    """Whether one matrix of a part makes its queries with keys and values, so that KV heads are no matrix of their own.

    >>> from meshwright.model.resolve import from_catalog
    >>> [fuses_heads(from_catalog(name).layers[1].stack.parts[0].operators) for name in ("gpt2", "qwen3-8b")]
    [True, False]
    """
    made: set[int] = set()
    for operator in operators:
        if isinstance(operator, Attention):
            return (operator.heads + 2 * operator.kv_heads) * operator.head_dim in made
        made |= {operator.outputs} if isinstance(operator, Linear) else set()
    return False
