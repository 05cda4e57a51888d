"""Faults that splitting a family's modules can have, to plant in the workers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.nn import functional

from meshwright.runtime import batch, batch_norm, dropout, head, parallelize, randomness, split, tensor
from meshwright.runtime.batch import Feed
from meshwright.runtime.loss import IGNORED, count_tokens
from meshwright.runtime.mesh import Peers
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

    def first(module: nn.Module, site: str, counter: Counter, held: Callable[[], tuple[int, int]], *heads: Any) -> None:
        draws(module, site, counter, lambda: (0, held()[1]), *heads)

    with mock.patch.object(dropout, "draw_calls", first):
        yield


@contextmanager
def dropped_weights_of_the_first_heads() -> Iterator[None]:
    """Every tensor rank draws the mask of the first heads, and of the first channels between its matrices."""
    inner = randomness._run
    with mock.patch.object(randomness, "_run", lambda count, share, device: inner(count, (0, share[1]), device)):
        yield


@contextmanager
def statistics_of_own_samples() -> Iterator[None]:
    """Batch norms take the mean and variance of a rank's own samples."""
    with mock.patch.object(parallelize, "share_statistics"):
        yield


@contextmanager
def statistics_that_learn_from_own_samples() -> Iterator[None]:
    """Batch norms share their statistics, and not the gradients of these."""

    class Alone(Peers):
        def all_reduce(self, tensor: Tensor, *_: Any) -> Tensor:
            return tensor * self.size

    def share(module: nn.Module, peers: Peers) -> None:
        shared(module, Alone(peers.ranks, peers.place, peers.handle, peers.order))

    shared = batch_norm.share_statistics
    with mock.patch.object(parallelize, "share_statistics", share):
        yield


@contextmanager
def a_mean_of_means() -> Iterator[None]:
    """Each of the eight parts of a batch takes the mean over its own labels."""
    seen, prepare, whole = [1], Feed.prepare, head.WholeLoss.__call__

    def prepared(feed: Feed, batch: Any) -> Any:
        found = prepare(feed, batch)
        seen[0] = found.tokens
        return found

    def mean(loss: Any, output: Tensor) -> Tensor:
        return whole(loss, output) / max(count_tokens(loss.targets), 1) * seen[0] / 8

    with mock.patch.object(Feed, "prepare", prepared), mock.patch.object(head.WholeLoss, "__call__", mean):
        yield


@contextmanager
def decoders_that_see_what_they_say() -> Iterator[None]:
    """Labels are not shifted on their way into a decoder."""
    with mock.patch.object(batch, "shifted_right", lambda labels, config: labels.clamp_min(0)):
        yield


@contextmanager
def the_last_piece_left_out() -> Iterator[None]:
    """Of logits in pieces the last has a loss that counts for nothing."""
    inner = head.LossInPieces.cut

    def cut(loss: Any, x: Tensor) -> Any:
        *first, (piece, targets) = inner(loss, x)
        return [*first, (piece, targets.fill_(IGNORED))]

    with mock.patch.object(head.LossInPieces, "cut", cut):
        yield


_cut = split._column_cut
