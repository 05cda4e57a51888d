"""Faults to plant in the workers: programs that move something else, or that get their sums wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from tests.reference import dp, pieces, ring
from tests.reference.parameters import taken


@contextmanager
def all_reduce_in_two_halves() -> Iterator[None]:
    """A reduce-scatter and an all-gather: the same sum, and on a ring the same bytes."""
    all_reduce = dist.all_reduce

    def halves(x: Tensor, *, group: Any) -> None:
        if x.numel() == 1:
            all_reduce(x, group=group)
            return
        mine = torch.empty_like(x.chunk(group.size())[0])
        dist.reduce_scatter_single(mine, x, group=group)
        dist.all_gather_single(x, mine, group=group)

    with mock.patch.object(dist, "all_reduce", halves):
        yield


@contextmanager
def narrow_gradients() -> Iterator[None]:
    """Gradients are reduced as wide as they were computed, whatever the recipe says."""

    def narrow(parameters: Any, _: torch.dtype) -> Tensor:
        return taken(parameters, torch.float32)

    with mock.patch.object(dp, "taken", narrow):
        yield


@contextmanager
def gather_twice() -> Iterator[None]:
    """Every gathering is done twice."""
    gather = dist.all_gather_single

    def twice(*args: Any, **kwargs: Any) -> None:
        gather(*args, **kwargs)
        gather(*args, **kwargs)

    with mock.patch.object(dist, "all_gather_single", twice):
        yield


@contextmanager
def keys_and_values_apart() -> Iterator[None]:
    """Keys and values go round in messages of their own: the same bytes in twice as many."""
    passed = ring.passed

    def apart(x: Tensor, group: Any) -> Tensor:
        return torch.stack([passed(part.contiguous(), group) for part in x])

    with mock.patch.object(ring, "passed", apart):
        yield


@contextmanager
def sums_thrown_away() -> Iterator[None]:
    """What is summed over the tensor ranks is not used."""
    summed = pieces._summed

    def unused(x: Tensor, group: Any) -> Tensor:
        summed(x, group)
        return x.view_as(x)

    with mock.patch.object(pieces, "_summed", unused):
        yield
