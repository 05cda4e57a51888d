"""Rows as tokens: a text as it stands, or a conversation of which the answers alone are learnt."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError
from meshwright.recipe.data import Columns
from meshwright.train.data.chat import Message
from meshwright.train.data.rows import Row, value_of
from meshwright.train.data.tokenizer import Tokenizer, Tokens

_ROLES = ("user", "assistant")


class Encoded(NamedTuple):
    """A row as tokens."""

    tokens: Tokens
    counts: NDArray[np.bool_] | None = None
    """True where a token is to be learnt; none: all are."""


class Encoder(Protocol):
    """What makes tokens of rows."""

    tokenizer: Tokenizer

    def __call__(self, rows: Iterable[Row]) -> Iterator[Encoded]: ...

    def texts(self, rows: Iterable[Row]) -> Iterator[str]: ...


class TextEncoder:
    """The text of a column, with what begins and ends it."""

    def __init__(self, tokenizer: Tokenizer, column: str) -> None:
        self.tokenizer, self._column = tokenizer, column

    def __call__(self, rows: Iterable[Row]) -> Iterator[Encoded]:
        """The tokens of each row. Raises MeshwrightError where one has no text."""
        return (Encoded(tokens) for tokens in self.tokenizer.encode_all(self.texts(rows)))

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The text of each row. Raises MeshwrightError where one has none."""
        return (text_of(row, self._column) for row in rows)


class ChatEncoder:
    """A conversation by the chat template, of which what the assistant says counts: from where its turn begins to where
    the template ends it. Each turn is made tokens by itself, as it is when the model is asked.
    """

    def __init__(self, tokenizer: Tokenizer, columns: Columns) -> None:
        self.tokenizer, self._columns = tokenizer, columns

    def __call__(self, rows: Iterable[Row]) -> Iterator[Encoded]:
        """The tokens of each row, and which of them count. Raises MeshwrightError for what is no conversation."""
        return (self._encoded(self.turns(conversation(row, self._columns))) for row in rows)

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """Each conversation as text."""
        return (self.tokenizer.chat(conversation(row, self._columns)) for row in rows)

    def turns(self, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        """The conversation's text in pieces, each with whether it counts. Raises MeshwrightError where the template
        says earlier turns in another way once there are later ones: what counts is then not to be told apart.
        """
        found, before = [], ""
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                found.append((self._after(before, messages[:place], answer=True), False))
                before += found[-1][0]
            found.append((self._after(before, messages[: place + 1]), message["role"] == "assistant"))
            before += found[-1][0]
        return found

    def _after(self, before: str, messages: Sequence[Message], *, answer: bool = False) -> str:
        text = self.tokenizer.chat(messages, answer=answer)
        if not text.startswith(before):
            raise MeshwrightError(
                f"the chat template of tokenizer '{self.tokenizer.name}' does not add turn to turn: it says turn "
                f"{len(messages)} and those before it anew; give one that does (data.chat_template)"
            )
        return text[len(before) :]

    def _encoded(self, turns: Sequence[tuple[str, bool]]) -> Encoded:
        """An answer that ends the conversation is followed by the tokenizer's end."""
        tokens = list(self.tokenizer.encode_all((text for text, _ in turns), whole=False))
        counts = [np.full(len(some), learnt) for some, (_, learnt) in zip(tokens, turns, strict=True)]
        end = self.tokenizer.end
        if end is not None and not (len(tokens[-1]) and tokens[-1][-1] == end):
            tokens.append(np.array([end], tokens[-1].dtype))
            counts.append(np.array([turns[-1][1]]))
        return Encoded(np.concatenate(tokens), np.concatenate(counts))


def is_conversation(row: Row, columns: Columns) -> bool:
    """Whether a row holds a conversation, or a prompt and a response."""
    return columns.messages in row or (columns.prompt in row and columns.response in row)


def conversation(row: Row, columns: Columns) -> list[dict[str, Any]]:
    """The messages of a row. Raises MeshwrightError where it has none with an answer in it."""
    if columns.messages not in row:
        texts = (text_of(row, columns.prompt), text_of(row, columns.response))
        return [{"role": role, "content": text} for role, text in zip(_ROLES, texts, strict=True)]
    messages = row[columns.messages]
    is_list = isinstance(messages, list) and all(isinstance(each, dict) and "role" in each for each in messages)
    if not is_list or not any(each["role"] == "assistant" for each in messages):
        raise MeshwrightError(
            f"column '{columns.messages}' wants a list of {{role, content}} with an assistant's turn; a row has "
            f"{str(messages)[:80]}"
        )
    return list(messages)


def text_of(row: Row, column: str) -> str:
    """The text in a column. Raises MeshwrightError where there is none."""
    text = value_of(row, column)
    if not isinstance(text, str):
        raise MeshwrightError(f"column '{column}' holds no text: {str(text)[:60]}")
    return text


Flat = tuple[Tokens, NDArray[np.int64], NDArray[np.bool_] | None]
"""Texts one after the other: their tokens, where each begins, and which tokens count (none: all)."""


def flattened(encoded: Iterable[Encoded]) -> Flat:
    """All rows one after the other; those without tokens are left out."""
    rows = [each for each in encoded if len(each.tokens)]
    if not rows:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), None
    lengths = np.fromiter((len(each.tokens) for each in rows), np.int64, len(rows))
    counts = (
        None if rows[0].counts is None else np.concatenate([each.counts for each in rows if each.counts is not None])
    )
    starts = np.fromiter(chain([0], np.cumsum(lengths)[:-1]), np.int64, len(rows))
    return np.concatenate([each.tokens for each in rows]), starts, counts
