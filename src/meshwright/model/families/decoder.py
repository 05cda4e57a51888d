"""What decoder-only language models have in common: an embedding, blocks, a norm with a head."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from meshwright.model.families.config import Config
from meshwright.model.operators import Dropout, Linear, Loss, Norm, Operator
from meshwright.model.spans import MAX_LAYERS
from meshwright.model.spec import LayerStack, ModelSpec, Part, Stream, Tie

Block: TypeAlias = Mapping[str, Sequence[Operator]]
"""The operators of a block's parts, by their names."""


def decoder_model(
    config: Config,
    name: str,
    embedding: Sequence[Operator],
    blocks: Block | Sequence[Block],
    head: Sequence[Operator],
    *,
    family: str,
    layers: int,
    hidden: int,
    vocabulary: int,
    modules: tuple[tuple[str, ...], str, tuple[str, ...]],
    tied: bool,
    limit: int | None = None,
    shared: tuple[str, ...] = (),
    parallel: bool = False,
) -> ModelSpec:
    """`embed`, `decoder.0-n`, `head`, each reading the one before. `blocks` is what all layers are, or a block for each
    layer, of which equal neighbours fold; `modules` the module paths of the three, of which the first is the table of
    words and the last the head's matrix, which may be `tied` to it. `limit`: positions that the model's tables reach.
    `parallel`: what comes after attention in a block reads what attention reads.
    """
    first, path, last = modules
    stacks = (
        LayerStack(
            span="embed", modules=first, output=hidden, parts=(Part(name="embedding", operators=tuple(embedding)),)
        ),
        *block_stacks("decoder", path, blocks, layers, reads=("embed",), hidden=hidden, parallel=parallel),
        LayerStack(
            span="head",
            modules=last,
            reads=(f"decoder.{layers - 1}",),
            output=vocabulary,
            parts=(Part(name="head", operators=tuple(head)),),
        ),
    )
    return ModelSpec(
        name=name,
        family=family,
        source=config.source,
        streams={"tokens": Stream(limit=limit)},
        stacks=stacks,
        shared=shared,
        ties=(Tie(name="embedding", owner=f"{first[0]}.weight", copies=(f"{last[-1]}.weight",)),) if tied else (),
    )


def block_stacks(
    base: str,
    path: str,
    blocks: Block | Sequence[Block],
    layers: int,
    *,
    reads: tuple[str, ...],
    hidden: int,
    stream: str = "tokens",
    side: tuple[str, ...] = (),
    parallel: bool = False,
) -> tuple[LayerStack, ...]:
    """`base.0-n` at the module path `path`: the first reads `reads`, each later one the one before it, and all of them
    `side` besides. `blocks` and `parallel` as in `decoder_model`.
    """
    return tuple(
        LayerStack(
            span=f"{base}.{start}-{end}" if end > start else f"{base}.{start}",
            modules=(path,),
            reads=(f"{base}.{start - 1}",) if start else reads,
            side=side,
            stream=stream,
            output=hidden,
            parts=tuple(
                Part(name=name, operators=tuple(operators), parallel=parallel and place > 0)
                for place, (name, operators) in enumerate(block.items())
            ),
        )
        for block, start, end in _runs(blocks, layers)
    )


def _runs(blocks: Block | Sequence[Block], layers: int) -> Iterator[tuple[Block, int, int]]:
    """Each run of equal blocks, with the first and the last of its layers."""
    if isinstance(blocks, Mapping):
        yield blocks, 0, layers - 1
        return
    start = 0
    for block, run in groupby(blocks[:MAX_LAYERS]):
        end = start + len(list(run)) - 1
        yield block, start, end
        start = end + 1


def language_head(
    norm: Norm | None, hidden: int, vocabulary: int, *, tied: bool, bias: bool = False
) -> tuple[Operator, ...]:
    """The last norm, the matrix to the vocabulary, and the loss."""
    matrix = Linear(path="lm_head", inputs=hidden, outputs=vocabulary, bias=bias, split="column", tied=tied)
    return (*((norm,) if norm else ()), matrix, Loss(classes=vocabulary))


def paths(operators: Sequence[Operator]) -> tuple[str, ...]:
    """Where the parameters of operators live."""
    return tuple(operator.path for operator in operators if operator.path)


def dropout(probability: float, width: int, of: Literal["hidden", "attention"], path: str) -> tuple[Dropout, ...]:
    """Dropout where there is any."""
    return (Dropout(path=path, width=width, probability=probability, of=of),) if probability else ()
