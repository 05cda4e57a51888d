"""A text as samples of bytes, drawn at random: for one's own loop, without a recipe."""

import torch
from torch import Tensor

from meshwright.errors import MeshwrightError


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
