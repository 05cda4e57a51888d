"""Faults to plant into pipelines, each a mistake that was made somewhere by somebody."""

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from meshwright.runtime import border, gradients, parallel_model, pipeline, recompute
from meshwright.runtime.pipeline import _UnderWay
from meshwright.runtime.sequence import Sequence
from meshwright.runtime.stage import StageModule


@contextmanager
def copies_apart() -> Iterator[None]:
    """The copies of a tied parameter keep their own gradients."""
    with mock.patch.object(parallel_model, "sum_tied", return_value=None):
        yield


@contextmanager
def copies_counted_twice() -> Iterator[None]:
    """The norm counts a tied parameter once for each stage that has it."""

    def twice(held: gradients.Held) -> Tensor:
        counted = [(each, replace(layout, copies=layout.copies / (2 if layout.tied else 1))) for each, layout in held]
        return gradients.global_norm(counted)

    with mock.patch.object(parallel_model, "global_norm", twice):
        yield


@contextmanager
def stale_activations() -> Iterator[None]:
    """Every micro-batch works on what came with the first."""
    arrived, first = _UnderWay._arrived, {}

    def stale(self: _UnderWay, key: Any) -> Tensor:
        tensor = arrived(self, key)
        edge, way, _ = key
        return first.setdefault((edge, way), tensor).detach().clone() if way == "forward" else tensor

    with mock.patch.object(_UnderWay, "_arrived", stale):
        yield


@contextmanager
def no_gradient_over_the_cut() -> Iterator[None]:
    """What comes back over a cut is nothing."""
    arrived = _UnderWay._arrived

    def nothing(self: _UnderWay, key: Any) -> Tensor:
        tensor = arrived(self, key)
        return torch.zeros_like(tensor) if key[1] == "backward" else tensor

    with mock.patch.object(_UnderWay, "_arrived", nothing):
        yield


@contextmanager
def the_first_sample_for_each() -> Iterator[None]:
    """The next group is sent the first sample in the place of each."""
    send = border.Border.send

    def wrong(self: border.Border, tensor: Tensor, way: Any, length: int) -> Any:
        return send(self, tensor[:1].expand_as(tensor) if way == "forward" else tensor, way, length)

    with mock.patch.object(border.Border, "send", wrong):
        yield


@contextmanager
def positions_turned() -> Iterator[None]:
    """Each rank of the next group is sent the positions of another."""
    send = border.Border.send

    def wrong(self: border.Border, tensor: Tensor, way: Any, length: int) -> Any:
        return send(self, tensor.roll(length // 3, 1) if way == "forward" else tensor, way, length)

    with mock.patch.object(border.Border, "send", wrong):
        yield


@contextmanager
def mask_of_another_sample() -> Iterator[None]:
    """A stage hides what another sample of the micro-batch is filled up with."""
    mask = Sequence.mask

    def turned(self: Sequence, placed: Any) -> Tensor | None:
        found = mask(self, placed)
        return None if found is None else found.roll(1, 0)

    with mock.patch.object(Sequence, "mask", turned):
        yield


@contextmanager
def never_the_last() -> Iterator[None]:
    """FSDP2 waits for a last micro-batch, and keeps what it has of the gradients of zero1, and of zero2 too where
    they are reduced once.
    """
    sync = StageModule.sync

    def waits(self: StageModule, *, last: bool, each: bool) -> None:
        sync(self, last=False, each=False)

    with mock.patch.object(StageModule, "sync", waits):
        yield


@contextmanager
def loss_of_the_last_stage_alone() -> Iterator[None]:
    """Nobody tells the other stages the loss."""
    with mock.patch.object(parallel_model.ParallelModel, "_told", lambda _, loss: loss):
        yield


@contextmanager
def weights_half_left_out() -> Iterator[None]:
    """The second half of a backward is never run."""
    with mock.patch.object(pipeline, "backward_for_weights", return_value=None):
        yield


@contextmanager
def recomputed_with_another_mask() -> Iterator[None]:
    """Recomputing draws the dropout of the first micro-batch, whichever it is."""
    backward = _UnderWay._backward

    def drawn(self: _UnderWay, stage: int, number: int) -> None:
        self._pipeline.counter.first_sample = 0
        backward(self, stage, number)

    with mock.patch.object(_UnderWay, "_backward", drawn):
        yield


class _OfTheFirst(deque[Any]):
    """What a call of a layer keeps: the tensors of its first call."""

    def __init__(self, first: list[Any]) -> None:
        super().__init__()
        self._first, self._place = first, 0

    def append(self, item: Any) -> None:
        """Keep another."""
        if isinstance(item, Tensor | tuple):
            self._first += [item] * (self._place == len(self._first))
            item, self._place = self._first[self._place], self._place + 1
        super().append(item)


@contextmanager
def kept_of_another_micro_batch() -> Iterator[None]:
    """A layer keeps what sums and rings put out of the first micro-batch, for all of them."""
    contexts, first = recompute._contexts, defaultdict[int, list[Any]](list)

    def started(parameter: Any, save: frozenset[str]) -> Any:
        outputs = recompute._Outputs()
        outputs.kept = _OfTheFirst(first[id(parameter)])
        with mock.patch.object(recompute, "_Outputs", return_value=outputs):
            return contexts(parameter, save)

    with mock.patch.object(recompute, "_contexts", started):
        yield
