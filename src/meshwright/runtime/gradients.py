"""What happens to gradients between backward and the optimizer: summed over replicas, measured, clipped."""

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.runtime.mesh import Peers
from meshwright.runtime.shard import SUMMED, Layout, local_part
from meshwright.runtime.torch_private import multiply_all, norms_of

Held = Iterable[tuple[nn.Parameter, Layout]]
"""The parameters of this rank with their layouts, in an order that all ranks of a group have; read more than once."""


class HeldParameters:
    """Those of a module, as they are each time: FSDP2 puts others in their place while it has them gathered."""

    def __init__(self, module: nn.Module, layouts: Mapping[str, Layout]) -> None:
        ends = [(*name.rpartition(".")[::2], layout) for name, layout in layouts.items()]
        self._places = [(module.get_submodule(path)._parameters, own, layout) for path, own, layout in ends]

    def __iter__(self) -> Iterator[tuple[nn.Parameter, Layout]]:
        for owner, name, layout in self._places:
            parameter = owner[name]
            assert parameter is not None
            yield parameter, layout


@torch.no_grad()
def sum_replicas(held: Held, bucket_mib: float) -> None:
    """All-reduce in buckets the gradients of what several ranks hold whole. Layers share buckets (Li 2020, section
    3.2.3). All that do not wait for each other are under way together.
    """
    reasons = _by_reason(held)
    for why in SUMMED:
        waiting = [
            (_joined(bucket), bucket, peers)
            for peers, parameters in reasons[why].values()
            for bucket in _buckets(parameters, bucket_mib * 2**20)
        ]
        under_way = [peers.start_all_reduce(flat) for flat, _, peers in waiting]
        for work, (flat, bucket, _) in zip(under_way, waiting, strict=True):
            work.wait()
            _take_back(bucket, flat)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return local_part(parameter.grad)


def _joined(bucket: list[nn.Parameter]) -> Tensor:
    """A bucket's gradients one after the other; where no state shards a parameter, its gradient lies there from now
    on.
    """
    flats = [_gradient(parameter).reshape(-1) for parameter in bucket]
    flat = torch.cat(flats) if len(flats) > 1 else flats[0]
    for parameter, part in zip(bucket, torch.split(flat, [each.numel() for each in flats]), strict=True):
        if not isinstance(parameter.grad, DTensor):
            parameter.grad = part.view_as(parameter)
    return flat


def _take_back(bucket: list[nn.Parameter], flat: Tensor) -> None:
    sizes = [_gradient(parameter).numel() for parameter in bucket]
    for parameter, part in zip(bucket, torch.split(flat, sizes), strict=True):
        if isinstance(parameter.grad, DTensor):
            _gradient(parameter).copy_(part.view_as(_gradient(parameter)))


@torch.no_grad()
def sum_tied(held: Held) -> None:
    """All-reduce the gradients of a tied parameter's copies on several stages. After `sum_replicas`."""
    tied = [(layout.name, parameter, layout.tied) for parameter, layout in held if layout.tied is not None]
    for _, parameter, peers in sorted(tied, key=lambda each: each[0]):  # by a name that all stages know it by
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        local = local_part(parameter.grad)
        local.copy_(peers.all_reduce(local.clone(memory_format=torch.contiguous_format)))


def set_aside(held: Held) -> list[tuple[nn.Parameter, Tensor]]:
    """Take away the gradients that replicas and copies already agree on, so that a new backward does not sum them once
    more.
    """
    found = []
    for parameter, layout in held:
        if parameter.grad is not None and (layout.summed or layout.tied is not None):
            found.append((parameter, parameter.grad))
            parameter.grad = None
    return found


@torch.no_grad()
def add_back(before: Iterable[tuple[nn.Parameter, Tensor]]) -> None:
    """Add what was set aside to the new gradients."""
    for parameter, gradient in before:
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


_ToSum = dict[tuple[int, ...], tuple[Peers, list[nn.Parameter]]]
"""Ranks → they, and the parameters whose gradients they sum."""


def _by_reason(held: Held) -> dict[str, _ToSum]:
    """Reason → what is to be summed for it."""
    found: dict[str, _ToSum] = {why: {} for why in SUMMED}
    for parameter, layout in held:
        for why, peers in layout.summed if parameter.grad is not None else ():
            found[why].setdefault(peers.ranks, (peers, []))[1].append(parameter)
    return found


def _buckets(parameters: list[nn.Parameter], limit: float) -> Iterable[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        gradient = _gradient(parameter)
        if bucket and (size + gradient.nbytes > limit or gradient.dtype != _gradient(bucket[0]).dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += gradient.nbytes
    if bucket:
        yield bucket


@torch.no_grad()
def global_norm(held: Held) -> Tensor:
    """The 2-norm of all gradients, each number counted once however many ranks hold it: one all-reduce of one
    number.
    """
    gradients, copies = _local_gradients(held)
    device = next(parameter.device for parameter, _ in held)
    square = torch.zeros((), dtype=torch.float64, device=device)
    if gradients:
        norms = torch.stack(norms_of(gradients)).to(torch.float64)
        square += (norms.square() / torch.tensor(copies, dtype=torch.float64, device=device)).sum()
    dist.all_reduce(square)
    return square.sqrt()


def _local_gradients(held: Held) -> tuple[list[Tensor], list[int]]:
    """What of the gradients this rank's memory holds, and how many ranks hold each."""
    here = [(local_part(each.grad), layout.copies) for each, layout in held if each.grad is not None]
    return [gradient for gradient, _ in here], [copies for _, copies in here]


@torch.no_grad()
def clip_by_norm(held: Held, norm: Tensor, max_norm: float) -> None:
    """Scale every gradient by max_norm / (norm + 1e-6) where that is under one, as torch.nn.utils.clip_grad_norm_
    does.
    """
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for gradient in _local_gradients(held)[0]:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for dtype, gradients in by_dtype.items():
        multiply_all(gradients, scale.to(dtype))
