"""Faults to plant in the workers, each a mistake that was made somewhere by somebody."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from meshwright.plan.groups import Purpose, purpose_axes
from meshwright.plan.spec import Row
from meshwright.runtime.shard import Layout, local_part


@contextmanager
def wrong_group() -> Iterator[None]:
    """Gradients are summed over the tensor-parallel group in place of the replicas."""

    def swapped(row: Row) -> dict[Purpose, tuple[str, ...]]:
        axes = purpose_axes(row)
        return axes | {"replica": axes["tensor"]}

    with mock.patch("meshwright.runtime.place.purpose_axes", swapped):
        yield


@contextmanager
def doubled_gradient() -> Iterator[None]:
    """One layer's gradients are summed twice."""
    from meshwright.runtime import gradients, parallel_model

    def twice(held: gradients.Held, bucket_mib: float) -> None:
        gradients.sum_replicas(held, bucket_mib)
        for parameter, layout in held:
            if layout.unit == "decoder.1" and parameter.grad is not None:
                local_part(parameter.grad).mul_(2)

    with mock.patch.object(parallel_model, "sum_replicas", twice):
        yield


@contextmanager
def missing_gradient_reduction() -> Iterator[None]:
    """Replicas keep their own gradients."""
    from meshwright.runtime import parallel_model

    with mock.patch.object(parallel_model, "sum_replicas", return_value=None):
        yield


@contextmanager
def missing_forward_reduction() -> Iterator[None]:
    """A row-split matrix forgets to sum."""
    from meshwright.runtime import tensor

    with mock.patch.object(tensor, "reduce_out", _unchanged):
        yield


@contextmanager
def missing_backward_reduction() -> Iterator[None]:
    """A split block forgets to sum the gradient of its input."""
    from meshwright.runtime import tensor

    with mock.patch.object(tensor, "copy_in", _unchanged):
        yield


@contextmanager
def same_dropout_everywhere() -> Iterator[None]:
    """Every rank draws the mask of the first samples."""
    from meshwright.runtime.place import Place

    with mock.patch.object(Place, "first_sample", return_value=0):
        yield


@contextmanager
def mean_over_the_shard_group() -> Iterator[None]:
    """FSDP2's own way: gradients averaged over the group, where one loss of all ranks wants the sum."""
    from torch.distributed.fsdp import FSDPModule

    with mock.patch.object(FSDPModule, "set_gradient_divide_factor", return_value=None):
        yield


@contextmanager
def norm_of_one_rank() -> Iterator[None]:
    """Clipping by the norm of what this rank holds."""
    from meshwright.runtime import gradients

    with mock.patch.object(gradients, "dist", SimpleNamespace(all_reduce=lambda _: None)):
        yield


@contextmanager
def missing_sum_of_partial_gradients() -> Iterator[None]:
    """Norms see a run of the positions each, and keep what they found of it."""
    with mock.patch.object(Layout, "summed", property(lambda layout: _but(layout, "partial"))):
        yield


@contextmanager
def missing_sum_of_copied_heads() -> Iterator[None]:
    """Ranks with the same KV head keep what their own queries asked of it."""
    with mock.patch.object(Layout, "summed", property(lambda layout: _but(layout, "copied"))):
        yield


def _but(layout: Layout, left_out: str) -> tuple[tuple[str, Any], ...]:
    groups = {"replica": layout.replica, "partial": layout.partial, "copied": layout.copied}
    return tuple((why, peers) for why, peers in groups.items() if peers is not None and why != left_out)


@contextmanager
def copies_summed() -> Iterator[None]:
    """Gradients that are equal on all ranks of an axis are summed over it."""
    from meshwright.runtime.place import Place

    with mock.patch.object(Place, "reducing", lambda place, placed: place.peers(placed, "shard")):
        yield


@contextmanager
def dropout_of_the_first_positions() -> Iterator[None]:
    """Every rank draws the mask of the first positions."""
    from meshwright.runtime.sequence import Sequence

    between = Sequence.between

    def first(sequence: Sequence, placed: Any) -> Any:
        found = between(sequence, placed)
        return found and (found[0] - found[0].min(), found[1])

    with mock.patch.object(Sequence, "between", first):
        yield


@contextmanager
def rotary_of_the_first_positions() -> Iterator[None]:
    """Every rank turns queries and keys as if its run began the sequence."""
    from meshwright.runtime.sequence import Sequence

    index = Sequence._index

    def first(sequence: Sequence, which: str, placed: Any) -> Any:
        found = index(sequence, which, placed)
        return found - found.min() if which == "at_matrices" else found

    with mock.patch.object(Sequence, "_index", first):
        yield


@contextmanager
def ring_in_another_order() -> Iterator[None]:
    """A ring takes the keys of one rank for those of another, and hides the wrong ones."""
    from meshwright.plan import positions

    around = positions.around_the_ring
    with mock.patch.object(positions, "around_the_ring", lambda *args: around(*args)[::-1]):
        yield


@contextmanager
def ring_without_the_gradients_of_others() -> Iterator[None]:
    """Keys and values learn from the queries of their own rank alone."""
    from meshwright.runtime import ring

    gradients_of = ring._gradients_of
    with mock.patch.object(ring, "_gradients_of", lambda *args: tuple(0 * each for each in gradients_of(*args))):
        yield


@contextmanager
def attention_dropout_of_the_first_heads() -> Iterator[None]:
    """Every rank draws the mask of the first heads."""
    from meshwright.runtime.attention import Core

    first = Core._first
    with mock.patch.object(Core, "_first", lambda core, query: (first(core, query)[0], 0)):
        yield


@contextmanager
def filler_that_counts() -> Iterator[None]:
    """What fills a vocabulary up is taken for tokens."""
    from meshwright.runtime import head, loss

    with mock.patch.object(head, "token_loss", lambda *args: loss.token_loss(*args[:3])):
        yield


def _unchanged(x: Any, _: Any) -> Any:
    return x
