"""What a run learns from: rows of a source, tokens, samples, and the batch of each step."""

from meshwright.train.data.byte_text import ByteText
from meshwright.train.data.dataset import TOKENIZER, Dataset, open_data, prepare
from meshwright.train.data.sources import standard_library_text
from meshwright.train.data.tokenizer import BYTES, Tokenizer, load_tokenizer

__all__ = [
    "BYTES",
    "TOKENIZER",
    "ByteText",
    "Dataset",
    "Tokenizer",
    "load_tokenizer",
    "open_data",
    "prepare",
    "standard_library_text",
]
