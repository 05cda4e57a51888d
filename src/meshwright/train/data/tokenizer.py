"""Text to tokens and back: bytes, a tokenizer of Hugging Face's, or one that is learnt from the data."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError, first_line
from meshwright.train.data.chat import PLAIN_TEMPLATE, Message, render

BYTES = 256
"""The vocabulary of text whose tokens are its bytes."""
Tokens = NDArray[Any]
_END = "<|endoftext|>"
_SPECIAL = {
    "eos_token": (_END, "</s>", "<|end_of_text|>", "<eos>", "[SEP]"),
    "pad_token": ("<pad>", "[PAD]", _END, "</s>", "<|end_of_text|>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""What a bare tokenizer.json calls them, which does not say which is which: the usual names, the first that it has."""
_BATCH = 512


class Tokenizer(Protocol):
    """What a task needs of a tokenizer."""

    name: str
    vocabulary: int
    """Tokens: every id is under this."""
    end: int | None
    """Comes after each text."""
    pad: int
    """Fills up; it counts nowhere."""
    mask: int | None
    """Stands for a token that is to be guessed."""
    special: frozenset[int]
    """Tokens that are no text."""

    def encode_all(self, texts: Iterable[str], *, whole: bool = True) -> Iterator[Tokens]:
        """The tokens of each text; of a `whole` one with what begins and ends a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""

    def chat(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        """A conversation as text; `answer`: up to where the assistant's next turn begins."""

    def save(self, folder: Path) -> None:
        """Write it to a folder that `load_tokenizer` reads."""


class ByteTokenizer:
    """A token is a byte of UTF-8. Two control characters, which no text has, serve as special tokens: NUL ends a text
    and fills up, SUB (0x1A, 'substitute') stands for what is to be guessed.
    """

    name, vocabulary = "bytes", BYTES
    end: int | None = 0
    pad = 0
    mask: int | None = 0x1A
    special = frozenset({0, 0x1A})

    def __init__(self, template: str | None = None) -> None:
        self._template = template or PLAIN_TEMPLATE

    def encode_all(self, texts: Iterable[str], *, whole: bool = True) -> Iterator[Tokens]:
        """The bytes of each text; after a whole one its end."""
        for text in texts:
            yield np.frombuffer(text.encode("utf-8", "surrogatepass") + b"\0" * whole, np.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        """Bytes that are no UTF-8 show as a replacement character."""
        return bytes(token for token in tokens if token not in self.special).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        """A conversation as text."""
        return render(self._template, messages, answer)

    def save(self, folder: Path) -> None:
        """Bytes need no file."""


class HubTokenizer:
    """A tokenizer of Hugging Face's."""

    def __init__(self, inner: Any, name: str, template: str | None = None) -> None:
        self.inner, self.name, self.vocabulary = inner, name, len(inner)
        self.end, self.mask = inner.eos_token_id, inner.mask_token_id
        self.end = inner.sep_token_id if self.end is None else self.end
        pads = (inner.pad_token_id, self.end, 0)
        self.pad = next(pad for pad in pads if pad is not None)
        self.special = frozenset(inner.all_special_ids)
        inner.chat_template = template or inner.chat_template  # what was given is saved with it
        self._template = inner.chat_template or PLAIN_TEMPLATE

    def encode_all(self, texts: Iterable[str], *, whole: bool = True) -> Iterator[Tokens]:
        """What the tokenizer itself begins and ends a text with, and its end where it puts none."""
        kind = np.uint16 if self.vocabulary <= 2**16 else np.int32
        for some in _batches(texts):
            for ids in self.inner(some, add_special_tokens=whole, verbose=False)["input_ids"]:
                ended = not whole or self.end is None or (ids and ids[-1] == self.end)
                yield np.array(ids if ended else [*ids, self.end], kind)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, without special tokens."""
        text: str = self.inner.decode(list(tokens), skip_special_tokens=True)
        return text

    def chat(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        """A conversation as text, by the tokenizer's own template where it has one."""
        special = {name: value for name, value in self.inner.special_tokens_map.items() if isinstance(value, str)}
        return render(self._template, messages, answer, special)

    def save(self, folder: Path) -> None:
        """As Hugging Face's libraries read it."""
        self.inner.save_pretrained(folder)


def load_tokenizer(what: str, chat_template: str | None = None) -> Tokenizer:
    """`bytes`, a tokenizer.json, or a folder of Hugging Face's with one. Nothing is fetched, no code of it is run.
    Raises MeshwrightError.
    """
    template = _template(chat_template)
    if what == "bytes":
        return ByteTokenizer(template)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(what).expanduser()
    if not path.exists():
        raise MeshwrightError(
            f"data.tokenizer: there is no file or folder '{what}'; write bytes, or {{vocabulary: 8192}}"
        )
    try:
        if path.is_file():
            return HubTokenizer(_named(PreTrainedTokenizerFast(tokenizer_file=str(path))), what, template)
        inner = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  its readers raise whatever theirs do
        raise MeshwrightError(f"data.tokenizer '{what}' cannot be read: {first_line(error)}") from None
    return HubTokenizer(_named(inner), what, template)


def train_tokenizer(texts: Iterable[str], vocabulary: int, chat_template: str | None = None) -> Tokenizer:
    """Byte-level byte-pair encoding (Radford 2019, section 2.2) learnt from texts: 256 bytes, merges, and three special
    tokens. Raises MeshwrightError where the texts give fewer tokens.
    """
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [_END, "<pad>", "<mask>"]
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    if inner.get_vocab_size() < vocabulary:
        raise MeshwrightError(
            f"data.tokenizer: the data gives {inner.get_vocab_size()} tokens, not {vocabulary}; write fewer"
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=_END,
        pad_token="<pad>",
        mask_token="<mask>",
        clean_up_tokenization_spaces=False,
    )
    return HubTokenizer(wrapped, f"of {vocabulary} tokens, learnt from the data", _template(chat_template))


def _named(inner: Any) -> Any:
    """Tell a tokenizer which of its tokens are special, where its files do not."""
    known = inner.get_vocab()
    for role, names in _SPECIAL.items():
        found = next((name for name in names if name in known), None)
        if getattr(inner, role) is None and found is not None:
            setattr(inner, role, found)
    return inner


def _template(file: str | None) -> str | None:
    try:
        return None if file is None else Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MeshwrightError(f"data.chat_template: cannot read {file}: {error}") from None


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    some: list[str] = []
    for text in texts:
        some.append(text)
        if len(some) == _BATCH:
            yield some
            some = []
    if some:
        yield some
