"""Attention heads as configurations give them, and the core that they make."""

from dataclasses import dataclass

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import dropout
from meshwright.model.operators import Attention, Linear, Operator


@dataclass(frozen=True)
class Heads:
    """Sizes of an attention: `count` query heads, `kv` key and value heads, all of width `dim`."""

    hidden: int
    count: int
    kv: int
    dim: int

    @property
    def queries(self) -> int:
        """Numbers that all queries of a position take."""
        return self.count * self.dim

    @property
    def keys(self) -> int:
        """Numbers that all keys of a position take; the values take as many."""
        return self.kv * self.dim

    def fused(self, path: str, *, bias: bool, interleaved: bool = False) -> Linear:
        """One matrix for queries, keys and values. `interleaved`: what belongs to one KV head lies together, so that a
        cut by heads takes one piece.
        """
        segments = () if interleaved else (self.queries, self.keys, self.keys)
        width = self.queries + 2 * self.keys
        return Linear(path=path, inputs=self.hidden, outputs=width, bias=bias, split="column", segments=segments)


def read_heads(
    config: Config,
    *,
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
    kv_heads: str | None = None,
    head_dim: str | None = None,
) -> Heads:
    """The sizes of attention, by the names that a family gives their fields; none where it has no such field. Raises
    DocumentError.
    """
    width, count = config.size(hidden), config.size(heads)
    if width % count and (head_dim is None or config.fields.get(head_dim) is None):
        raise config.error(heads, f"{count} heads do not divide {hidden}, which is {width}")
    few = config.size(kv_heads, count) if kv_heads else count
    dim = config.size(head_dim, max(1, width // count)) if head_dim else width // count
    if count % few:
        raise config.error(str(kv_heads), f"{few} KV heads do not divide the {count} heads")
    return Heads(width, count, few, dim)


def core(
    config: Config,
    heads: Heads,
    path: str,
    *,
    dropout_field: str = "attention_dropout",
    default: float = 0.0,
    dropout_path: str = "",
    window: int | None = None,
    alibi: bool = False,
    capped: bool = False,
    sinks: bool = False,
) -> list[Operator]:
    """softmax(q kᵀ) v, with dropout on its weights where the configuration says so."""
    probability = config.chance(dropout_field, default)
    return [
        Attention(
            path=path,
            heads=heads.count,
            kv_heads=heads.kv,
            head_dim=heads.dim,
            window=window,
            alibi=alibi,
            capped=capped,
            sinks=sinks,
        ),
        *dropout(probability, heads.count, "attention", dropout_path or path),
    ]


def rotary_share(config: Config, field: str, default: float) -> float:
    """The share of a head that is rotated: of `rope_parameters`, or of the older field of its own."""
    inner = config.inner("rope_parameters")
    if inner.fields.get("partial_rotary_factor") is not None:
        return inner.share("partial_rotary_factor", default)
    return config.share(field, default)
