"""The task of a run: what its loss asks for, and what its rows have to give."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshwright.errors import MeshwrightError
from meshwright.model.operators import Convolution, Loss
from meshwright.model.spec import ModelSpec
from meshwright.recipe.data import Data
from meshwright.recipe.spec import Recipe
from meshwright.train.data.encode import ChatEncoder, Encoder, TextEncoder, is_conversation, text_of
from meshwright.train.data.order import Order
from meshwright.train.data.pieces import Pieces, Single, packed
from meshwright.train.data.rows import Rows, every
from meshwright.train.data.stream import Streamed
from meshwright.train.data.tokenizer import ByteTokenizer, Tokenizer
from meshwright.train.tasks.language import HiddenTokens, NextToken, Sample
from meshwright.train.tasks.pairs import ImageClasses, Labels, TextClasses, Translation, opened


class Samples(Protocol):
    """Samples by number; `place` is where one stands in the run, of which follows what is drawn anew each epoch."""

    @property
    def count(self) -> int | None:
        """How many; none where they have no end."""

    @property
    def block(self) -> int:
        """Samples that lie together in a file."""

    def sample(self, number: int, place: int, /) -> Sample: ...


@dataclass(frozen=True)
class Setting:
    """What a task is made of."""

    data: Data
    recipe: Recipe
    model: ModelSpec
    rows: Rows
    tokenizer: Tokenizer
    every: Rows
    """Those of other parts too: classes are numbered over all of them."""
    cache: Path | None = None
    """A folder for tokens."""

    def length(self, stream: str = "tokens") -> int:
        """Positions per sample. Raises MeshwrightError where the recipe does not say them."""
        found = self.recipe.length(stream)
        if found is None:
            raise MeshwrightError(f"recipe.sequence does not say the positions of '{stream}'")
        return found

    @property
    def classes(self) -> int | None:
        """Classes that the model tells apart."""
        losses = (op for stack in self.model.stacks for op in stack.operators if isinstance(op, Loss))
        return next((op.classes for op in losses), None)


def encoder_of(data: Data, task: str, rows: Rows, tokenizer: Tokenizer) -> Encoder:
    """What makes tokens of the rows: conversations where they hold some, texts otherwise. Raises MeshwrightError where
    they hold neither.
    """
    columns, first = data.columns, rows[0]
    if task == "causal_lm" and is_conversation(first, columns):
        return ChatEncoder(tokenizer, columns)
    if columns.text not in first:
        talk = f", or '{columns.messages}', or '{columns.prompt}' and '{columns.response}'"
        has, reads = ", ".join(sorted(first)), f"'{columns.text}'{talk if task == 'causal_lm' else ''}"
        raise MeshwrightError(
            f"rows of '{data.source}' have the columns {has}; {task} reads {reads}: name yours in data.columns"
        )
    return TextEncoder(tokenizer, columns.text)


def texts_of(data: Data, task: str, rows: Rows) -> Iterator[str]:
    """All that a tokenizer can be learnt from. Raises MeshwrightError where rows have no text."""
    if task == "seq2seq":
        columns = data.columns.source, data.columns.target
        return (text_of(row, column) for row in every(rows) for column in columns)
    return encoder_of(data, task, rows, ByteTokenizer()).texts(every(rows))


def samples_of(setting: Setting) -> Samples:
    """The samples of the task that the recipe's loss names. Raises MeshwrightError for what does not fit together."""
    samples = _TASKS[setting.recipe.loss.kind](setting)
    if not isinstance(samples, ImageClasses):
        _check_vocabulary(setting.tokenizer, setting.model)
    return samples


def _check_vocabulary(tokenizer: Tokenizer, model: ModelSpec) -> None:
    rows = model.vocabulary
    if rows is not None and tokenizer.vocabulary > rows:
        raise MeshwrightError(
            f"data.tokenizer '{tokenizer.name}' has {tokenizer.vocabulary:,} tokens, and the vocabulary of model "
            f"'{model.name}' {rows:,}: take the model's own tokenizer, or a model with as many"
        )


def row_order(setting: Setting, count: int, block: int) -> Order:
    """The order of so many rows or samples in this run."""
    return Order(count, setting.recipe.seed, setting.data.shuffle, block)


def _pieces(setting: Setting) -> Pieces:
    data = setting.data
    encoder = encoder_of(data, setting.recipe.loss.kind, setting.rows, setting.tokenizer)
    packing = data.packing or ("none" if isinstance(encoder, ChatEncoder) else "stream")
    if packing == "none":
        return Single(setting.rows, encoder, setting.length())
    if data.streaming:
        order = row_order(setting, len(setting.rows), setting.rows.block)
        return Streamed(setting.rows, encoder, setting.length(), order)
    found = packed(setting.rows, encoder, setting.length(), setting.cache)
    if not found.count:
        raise MeshwrightError(f"data.source '{data.source}' has no text in it")
    return found


def _causal(setting: Setting) -> Samples:
    return NextToken(_pieces(setting), apart=setting.data.packing == "documents")


def _masked(setting: Setting) -> Samples:
    if setting.data.packing == "documents":
        raise MeshwrightError("data.packing: documents are kept apart in causal_lm alone; write stream or none")
    mask = setting.tokenizer.mask
    if mask is None:
        raise MeshwrightError(
            f"data.tokenizer '{setting.tokenizer.name}' has no token that hides another; masked_lm wants one ([MASK])"
        )
    return HiddenTokens(_pieces(setting), setting.tokenizer, mask, setting.data.masked, setting.recipe.seed)


def _translation(setting: Setting) -> Samples:
    columns = setting.data.columns
    source, target = (
        Single(setting.rows, TextEncoder(setting.tokenizer, column), setting.length(stream))
        for column, stream in ((columns.source, "source"), (columns.target, "target"))
    )
    return Translation(source, target)


def _classes(setting: Setting) -> Samples:
    columns, rows = setting.data.columns, setting.rows
    labels = Labels(setting.every, columns.label, setting.classes)
    if columns.image not in rows[0]:
        return TextClasses(Single(rows, TextEncoder(setting.tokenizer, columns.text), setting.length()), rows, labels)
    first = next((op for op in setting.model.stacks[0].operators if isinstance(op, Convolution)), None)
    if first is None:
        raise MeshwrightError(f"data.source '{setting.data.source}' holds images, and the model takes none")
    size = setting.data.image_size or opened(rows[0], columns.image).size[0]
    _check_patches(setting.model, first, size)
    return ImageClasses(rows, labels, columns.image, first.inputs, size)


def _check_patches(model: ModelSpec, first: Convolution, size: int) -> None:
    """Whether images of this size give as many patches as the model has positions for, a class token or two aside."""
    wanted = model.streams[model.stacks[0].stream].length
    found = math.prod(size // side for side in first.kernel)
    if wanted is not None and not found <= wanted <= found + 2:
        raise MeshwrightError(
            f"images of {size} x {size} pixels give {found} patches, and the model has {wanted} positions; set "
            "data.image_size to what the model takes"
        )


_TASKS: dict[str, Callable[[Setting], Samples]] = {
    "causal_lm": _causal,
    "masked_lm": _masked,
    "seq2seq": _translation,
    "classification": _classes,
}
