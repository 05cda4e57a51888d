"""What a part's matrices are to each other: those between which tensor parallelism cuts, those that make heads."""

from collections.abc import Iterable, Iterator

from meshwright.model.operators import Attention, Linear, Operator

_STREAM_TO_HEADS = frozenset(
    ("q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "linear_qkv", "c_attn", "query_key_value", "Wqkv")
)


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


def makes_heads(operator: Operator) -> bool:
    """Whether it is a matrix that makes queries, keys or values of the stream, by its name."""
    return isinstance(operator, Linear) and operator.path.rpartition(".")[2] in _STREAM_TO_HEADS


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
