"""Faults that splitting a family's modules can have, to plant in the workers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from torch import nn
from torch.nn import functional

from meshwright.runtime import parallelize, randomness, split, tensor
from meshwright.runtime.randomness import Counter


@contextmanager
def fused_as_if_plain() -> Iterator[None]:
    """Queries, keys and values of one matrix are cut as if it were one of them."""
    with mock.patch.object(split, "_column_cut", lambda *args: replace(_cut(*args), segments=())):
        yield


@contextmanager
def interleaved_as_if_in_a_row() -> Iterator[None]:
    """A matrix whose heads hold query, key and value each is cut as if all queries came first."""

    def in_a_row(linear: Any, core: Any, *args: Any) -> Any:
        cut, third = _cut(linear, core, *args), linear.outputs // 3
        return replace(cut, segments=(third,) * 3) if core is not None else cut

    with mock.patch.object(split, "_column_cut", in_a_row):
        yield


@contextmanager
def norms_of_other_heads_left_out() -> Iterator[None]:
    """Norms of queries and keys learn from a rank's own heads alone."""
    with mock.patch.object(parallelize, "norms_of_heads", return_value=()):
        yield


@contextmanager
def plain_lookup() -> Iterator[None]:
    """A cut embedding forgets what its class does with the values."""
    inner = tensor.cut_vocabulary

    def forgetful(module: nn.Embedding, *args: Any) -> None:
        vars(module)["forward"] = lambda ids: functional.embedding(ids, module.weight)
        inner(module, *args)

    with mock.patch.object(split, "cut_vocabulary", forgetful):
        yield


@contextmanager
def called_dropout_of_the_first_samples() -> Iterator[None]:
    """Dropout that is called as a function draws the mask of the first samples on every rank."""
    draws = randomness.draw_calls

    def first(module: nn.Module, site: str, counter: Counter, held: Callable[[], tuple[int, int]]) -> None:
        draws(module, site, counter, lambda: (0, held()[1]))

    with mock.patch.object(parallelize, "draw_calls", first):
        yield


_cut = split._column_cut
