"""Text as batches of tokens: the same samples at the same step under any plan."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from meshwright.errors import MeshwrightError

BYTES = 256
"""The vocabulary of text whose tokens are its bytes."""


def standard_library_text(limit: int = 4_000_000) -> bytes:
    """The source of Python's own standard library, file after file by name, up to `limit` bytes: real text, always at
    hand.

    Raises MeshwrightError where this Python comes without its source.
    """
    text = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
        if len(text) >= limit:
            break
    if len(text) < 2**16:
        raise MeshwrightError(f"{sysconfig.get_path('stdlib')} holds no source of the standard library to train on")
    return bytes(text[:limit])


class ByteText:
    """Samples of `length` bytes, drawn from a text by seed and step."""

    def __init__(self, text: bytes, length: int, *, seed: int = 0) -> None:
        if len(text) <= length:
            raise MeshwrightError(f"a text of {len(text)} bytes gives no sample of {length}; take shorter samples")
        self.length, self.seed = length, seed
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def batch(self, step: int, samples: int) -> dict[str, Tensor]:
        """`input_ids` and `labels` [samples, length] of a step; labels are not shifted."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(0, len(self._tokens) - self.length, (samples, 1), generator=generator)
        ids = self._tokens[starts + torch.arange(self.length)].long()
        return {"input_ids": ids, "labels": ids}
