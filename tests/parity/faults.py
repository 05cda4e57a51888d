"""Faults to plant in the workers, each a mistake that was made somewhere by somebody."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import nn

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

    def twice(module: nn.Module, layouts: Mapping[str, Layout], bucket_mib: float) -> None:
        gradients.sum_replicas(module, layouts, bucket_mib)
        for name, layout in layouts.items():
            gradient = module.get_parameter(name).grad
            if layout.unit == "decoder.1" and gradient is not None:
                local_part(gradient).mul_(2)

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


def _unchanged(x: Any, _: Any) -> Any:
    return x
