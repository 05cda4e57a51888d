"""Streams: which sequence a layer works on, and how an operator's positions follow from it."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from meshwright.model.spec import Stream
from meshwright.trace.items import Item, union

_WORDS = (
    (("pixel", "image", "video"), "patches"),
    (("input_features", "input_values", "audio", "sound", "wave", "speech", "mel"), "audio"),
)
"""Parts of an input's name → what its positions are called, where the model fixes their number."""
_MATTERS = frozenset({"linear", "convolution", "attention", "matmul", "experts", "expert", "router"})


class Spot(NamedTuple):
    """An operator's positions in terms of its layer's."""

    fields: dict[str, object]
    """`stream` or `positions`, where they are not the layer's own."""
    times: int = 1
    """How often each position of the stream is worked on."""
    uneven: bool = False
    """True where the positions do not divide over the samples: all samples share them."""


class Streams:
    """The streams of a model. Lengths that a recipe chooses are known from the example; others are the model's."""

    def __init__(self, batch: int, free: dict[str, int]) -> None:
        self.batch, self.free = batch, free
        self.fixed: dict[str, int] = {}
        self.limits: dict[str, int] = {}

    def foresee(self, found: Iterable[Iterable[Item]]) -> None:
        """Give the plain words to the lengths that most layers work on, and drop those that a recipe might choose but
        no layer works on.
        """
        layers = [list(items) for items in found]
        worked = {length for items in layers for length in self._votes(items)}
        self.free = {name: length for name, length in self.free.items() if length in worked}
        counts = Counter(self._longest(items) for items in layers)
        for (length, word), _ in counts.most_common():
            if length not in self.free.values():
                self._fixed(length, word)

    def _longest(self, items: list[Item]) -> tuple[int, str]:
        length = next((length for length, _ in self._votes(items).most_common(1)), 1)
        return length, _word(items, length)

    def _votes(self, items: Iterable[Item]) -> Counter[int]:
        """Numbers of positions, by the matrix FLOPs of the operators that work on them."""
        votes: Counter[int] = Counter()
        for item in items:
            length, rest = divmod(item.rows, self.batch)
            if not rest and length:
                votes[length] += item.flops + (item.op in _MATTERS) + 1
        return votes

    def named(self, name: str) -> int:
        """The length of a stream in the example."""
        return self.free[name] if name in self.free else self.fixed[name]

    def of_layer(self, items: Iterable[Item]) -> str:
        """The stream of a layer: most of its matrix FLOPs are of its positions."""
        items = list(items)
        votes = self._votes(items)
        for name, length in self.free.items():
            for times in [each for each in votes if each > length and each % length == 0]:
                votes[length] += votes.pop(times)
            if votes and votes.most_common(1)[0][0] == length:
                return name
        length = votes.most_common(1)[0][0] if votes else 1
        return self._fixed(length, _word(items, length))

    def _fixed(self, length: int, word: str) -> str:
        known = [name for name, each in self.fixed.items() if each == length and name.partition("_")[0] == word]
        if known:
            return known[0]
        name = word if word not in self.fixed and word not in self.free else f"{word}_{length}"
        self.fixed[name] = length
        return name

    def spot(self, rows: int, stream: str) -> Spot:
        """Where an operator with so many rows stands in a layer of a stream."""
        length, rest = divmod(rows, self.batch)
        if rest or not length:
            return Spot({"positions": max(1, -(-rows // self.batch))}, uneven=True)
        if length == self.named(stream):
            return Spot({})
        for name, each in sorted(self.free.items(), key=lambda pair: pair[0] != stream):
            if length % each == 0:
                return Spot({} if name == stream else {"stream": name}, length // each)
        return Spot({"positions": length})

    def crossed(self, times: int) -> tuple[str | None, int]:
        """Of how often each position is worked on, the stream whose positions it meets, and how often for each."""
        for name, length in self.free.items():
            if times % length == 0:
                return name, times // length
        return None, times

    def seen(self, context: int, rows: int, stream: str, near: Iterable[str]) -> dict[str, object]:
        """What an attention core looks at: nothing to say where it is its own positions; else another stream, or a
        block of so many positions.
        """
        own = rows // self.batch if rows % self.batch == 0 else None
        if context == own:
            return {}
        for name in (*near, *self.free):
            if name != stream and self.named(name) == context:
                return {"cross": name}
        return {"block": context}

    def records(self, used: Iterable[str]) -> dict[str, Stream]:
        """As a ModelSpec has them."""
        used = list(dict.fromkeys(used))
        return {
            name: Stream(length=self.fixed.get(name), limit=self.limits.get(name) if name in self.free else None)
            for name in used
        }


def _word(items: list[Item], length: int) -> str:
    if length == 1:
        return "samples"
    inputs = union(item.output.inputs for item in items if item.output is not None)
    for parts, word in _WORDS:
        if any(part in name.lower() for name in inputs for part in parts):
            return word
    return "positions"
