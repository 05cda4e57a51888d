"""How much passes through an operator, and what it computes of that."""

from typing import NamedTuple


class Work(NamedTuple):
    """How much passes through an operator: samples, positions per sample, and positions that attention looks at."""

    samples: float
    length: float
    context: float

    @property
    def positions(self) -> float:
        """Positions in all."""
        return self.samples * self.length


class Flops(NamedTuple):
    """Matrix FLOPs of one operator, term by term: a multiply and an add count as two."""

    forward: float = 0.0
    """Of all the products, also those that a mask hides."""
    by_input: float = 0.0
    """Backward, for the gradients of what it reads."""
    by_weight: float = 0.0
    """Backward, for the gradients of its own parameters."""
    masked: float = 0.0
    """Of forward's, what an attention core's mask hides, and a kernel that knows the mask skips: half for a causal one,
    more where a window is narrow. The same share of backward's is hidden.
    """
    again: float = 0.0
    """What flash attention computes once more in backward instead of keeping the scores: the product of queries and
    keys (Dao 2022, section 3.1).
    """

    @property
    def backward(self) -> float:
        """Without what is computed again."""
        return self.by_input + self.by_weight

    @classmethod
    def by_weights(cls, forward: float) -> "Flops":
        """Of a product with a weight: backward has one for the input's gradient and one for the weight's."""
        return cls(forward, forward, forward)
