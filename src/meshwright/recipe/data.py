"""Data: what a run learns from, and how it becomes samples."""

from typing import Annotated, Literal

from pydantic import Field

from meshwright.document import Record
from meshwright.units import Flag, PositiveInt

Format = Literal["text", "jsonl", "parquet", "huggingface", "images"]
Packing = Literal["stream", "documents", "none"]
Share = Annotated[float, Field(ge=0, lt=1)]


class Columns(Record):
    """The names under which rows hold what a task reads. A task reads a few of these: `train.tasks` says which."""

    text: str = "text"
    label: str = "label"
    image: str = "image"
    prompt: str = "prompt"
    response: str = "response"
    messages: str = "messages"
    """A conversation: a list of {role, content}, for fine-tuning; where rows have none, prompt and response."""
    source: str = "source"
    target: str = "target"


class TrainedTokenizer(Record):
    """Byte-pair encoding learnt from the data itself, and saved with the run."""

    vocabulary: Annotated[int, Field(ge=259)] = 8192
    """Tokens: the 256 bytes, three special ones, and merges."""


class Data(Record):
    """What to learn from: a built-in set, or files, and how they become samples."""

    source: str = "stdlib"
    """`stdlib` (the source of Python's standard library), `digits` (scikit-learn's, as images), a file, a folder, or a
    pattern such as `corpus/*.jsonl`."""
    format: Format | None = None
    """None: what the names say."""
    split: str | None = None
    """Of a Hugging Face dataset folder with several; none: `train`."""
    columns: Columns = Columns()
    tokenizer: str | TrainedTokenizer = "bytes"
    """`bytes`, a `tokenizer.json` or a folder that has one, or `{vocabulary: 8192}` to train one."""
    chat_template: str | None = None
    """A file with a Jinja template for conversations; none: the tokenizer's own, or a plain one."""
    packing: Packing | None = None
    """`stream`: texts one after the other, cut where a sample is full. `documents`: the same, but no text sees another
    one; for causal language models, under plans that divide no positions and whose layers divide the samples alike.
    `none`: a text or row each sample, cut or filled up. Left out: `stream` for texts, `none` for all else."""
    streaming: Flag = False
    """Texts become tokens as they are needed, not before the first step: for more than memory holds."""
    shuffle: Flag = True
    """Another order each epoch."""
    held_out: Share = 0.0
    """This share of the rows is kept back for evaluation."""
    image_size: PositiveInt | None = None
    """Images are resized to so many pixels a side; none: to the first one's."""
    limit: PositiveInt | None = None
    """Read no more rows than this."""
    masked: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """The share of tokens to be guessed in masked language modelling (Devlin 2019, section 3.1)."""
