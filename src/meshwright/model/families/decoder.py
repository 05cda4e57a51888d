"""What decoder-only language models have in common: an embedding, equal blocks, a norm with a head."""

from collections.abc import Sequence
from typing import Literal

from meshwright.model.operators import Dropout, Linear, Loss, Norm, Operator
from meshwright.model.spec import LayerStack, Part, Tie


def decoder_stacks(
    embedding: Sequence[Operator],
    blocks: dict[str, Sequence[Operator]],
    head: Sequence[Operator],
    *,
    layers: int,
    hidden: int,
    vocabulary: int,
    modules: tuple[tuple[str, ...], str, tuple[str, ...]],
) -> tuple[LayerStack, ...]:
    """`embed`, `decoder.0-n`, `head`, each reading the one before. `blocks` are the parts of a block by name;
    `modules` the module paths of the three.
    """
    first, block, last = modules
    return (
        LayerStack(
            span="embed", modules=first, output=hidden, parts=(Part(name="embedding", operators=tuple(embedding)),)
        ),
        LayerStack(
            span=f"decoder.0-{layers - 1}",
            modules=(block,),
            reads=("embed",),
            output=hidden,
            parts=tuple(Part(name=name, operators=tuple(operators)) for name, operators in blocks.items()),
        ),
        LayerStack(
            span="head",
            modules=last,
            reads=(f"decoder.{layers - 1}",),
            output=vocabulary,
            parts=(Part(name="head", operators=tuple(head)),),
        ),
    )


def language_head(norm: Norm, hidden: int, vocabulary: int, *, tied: bool) -> tuple[Operator, ...]:
    """The last norm, the matrix to the vocabulary, and the loss."""
    matrix = Linear(path="lm_head", inputs=hidden, outputs=vocabulary, split="column", tied=tied)
    return norm, matrix, Loss(classes=vocabulary)


def embedding_tie(owner: str, *, tied: bool) -> tuple[Tie, ...]:
    """The head's matrix as a copy of the embedding's, where it is one."""
    return (Tie(name="embedding", owner=owner, copies=("lm_head.weight",)),) if tied else ()


def dropout(probability: float, width: int, of: Literal["hidden", "attention"], path: str) -> tuple[Dropout, ...]:
    """Dropout where there is any."""
    return (Dropout(path=path, width=width, probability=probability, of=of),) if probability else ()
