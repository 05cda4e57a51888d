"""What of a model limits its plans, or slows them: a table of small observations."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from meshwright.model.operators import Attention, Embedding, Linear
from meshwright.model.spec import ModelSpec

COMMON_TP = 8
"""Devices of a usual node, over which tensor parallelism is usually spread."""
_MOST_TP = 64
TILES = (128, 64)
"""Sizes in which matrix units work; 64 is the least that cuBLAS's fp16 kernels like (NVIDIA, Matrix Multiplication
Background User's Guide, section 4)."""


class Hazard(NamedTuple):
    """One thing to mind: its name, and what follows from it."""

    name: str
    message: str


def hazards(spec: ModelSpec) -> list[Hazard]:
    """Everything to mind of a model, each thing once."""
    return list(dict.fromkeys(hazard for look in HAZARDS for hazard in look(spec)))


def _ties(spec: ModelSpec) -> Iterator[Hazard]:
    for tie in spec.ties:
        names = ", ".join((tie.owner, *tie.copies))
        yield Hazard("tied-parameters", f"{names} are one parameter; stages that hold copies sum its gradients")


def _heads(spec: ModelSpec) -> Iterator[Hazard]:
    for attention in _attentions(spec):
        if attention.heads % COMMON_TP:
            ways = ", ".join(str(n) for n in range(1, _MOST_TP + 1) if attention.heads % n == 0)
            yield Hazard("heads", f"{attention.heads} attention heads divide over tp {ways}, not over {COMMON_TP}")


def _kv_heads(spec: ModelSpec) -> Iterator[Hazard]:
    for attention in _attentions(spec):
        if attention.kv_heads < min(COMMON_TP, attention.heads):
            few = attention.kv_heads
            yield Hazard("few-kv-heads", f"{few} KV head{'s' * (few > 1)}: tp above {few} holds copies of them")


def _vocabulary(spec: ModelSpec) -> Iterator[Hazard]:
    for rows in _vocabularies(spec):
        missed = [str(tile) for tile in TILES if rows % tile]
        if missed:
            wanted = -(-rows // TILES[0]) * TILES[0]
            text = f"a vocabulary of {rows:,} does not divide by {' or '.join(missed)}: slow matrices; {wanted:,} would"
            yield Hazard("vocabulary", text)


def _batch_statistics(spec: ModelSpec) -> Iterator[Hazard]:
    if spec.batch_statistics:
        said = "a norm or the loss looks at the whole batch: the recipe must fix the number of micro-batches"
        yield Hazard("batch-statistics", said)


def _attention_dropout(spec: ModelSpec) -> Iterator[Hazard]:
    if spec.attention_dropout:
        chance = f"attention weights are dropped with probability {spec.attention_dropout:g}"
        yield Hazard("attention-dropout", f"{chance}; kernels draw that themselves, differently under each plan")


def _attentions(spec: ModelSpec) -> list[Attention]:
    return [op for stack in spec.stacks for op in stack.operators if isinstance(op, Attention)]


def _vocabularies(spec: ModelSpec) -> list[int]:
    operators = [op for stack in spec.stacks for op in stack.operators]
    rows = [op.rows for op in operators if isinstance(op, Embedding) and op.split == "vocabulary"]
    heads = [op.outputs for op in operators if isinstance(op, Linear) and op.tied]
    return list(dict.fromkeys(rows + heads))


HAZARDS: tuple[Callable[[ModelSpec], Iterator[Hazard]], ...] = (
    _ties,
    _heads,
    _kv_heads,
    _vocabulary,
    _batch_statistics,
    _attention_dropout,
)
