"""What happens to gradients between backward and the optimizer: summed over replicas, measured, clipped."""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.runtime.mesh import Peers
from meshwright.runtime.shard import SUMMED, Layout, local_part


def sum_replicas(module: nn.Module, layouts: Mapping[str, Layout], bucket_mib: float) -> None:
    """All-reduce, layer by layer in buckets, the gradients of what several ranks hold whole. All that do not wait for
    each other are under way together.
    """
    for why in SUMMED:
        waiting = [
            (_joined(bucket), bucket, peers)
            for peers, parameters in _by_unit(module, layouts, why)
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


def sum_tied(module: nn.Module, layouts: Mapping[str, Layout]) -> None:
    """All-reduce the gradients of a tied parameter's copies on several stages. After `sum_replicas`."""
    tied = [(layout.name, name, layout.tied) for name, layout in layouts.items() if layout.tied is not None]
    for _, name, peers in sorted(tied, key=lambda each: each[0]):  # by a name that all stages know it by
        parameter = module.get_parameter(name)
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        local = local_part(parameter.grad)
        local.copy_(peers.all_reduce(local.clone(memory_format=torch.contiguous_format)))


def set_aside(module: nn.Module, layouts: Mapping[str, Layout]) -> dict[str, Tensor]:
    """Take away the gradients that replicas and copies already agree on, so that a new backward does not sum them once
    more.
    """
    found = {}
    for name, layout in layouts.items():
        parameter = module.get_parameter(name)
        if (layout.summed or layout.tied is not None) and parameter.grad is not None:
            found[name], parameter.grad = parameter.grad, None
    return found


def add_back(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Add what was set aside to the new gradients."""
    for name, gradient in before.items():
        parameter = module.get_parameter(name)
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def _by_unit(module: nn.Module, layouts: Mapping[str, Layout], why: str) -> Iterable[tuple[Peers, list[nn.Parameter]]]:
    """The parameters whose gradients to sum for one reason, by unit and group, in the order of the layouts (the same on
    every rank).
    """
    found: dict[tuple[str, tuple[int, ...]], tuple[Peers, list[nn.Parameter]]] = {}
    for name, layout in layouts.items():
        parameter, peers = module.get_parameter(name), dict(layout.summed).get(why)
        if parameter.grad is not None and peers is not None:
            found.setdefault((layout.unit, peers.ranks), (peers, []))[1].append(parameter)
    return found.values()


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


def global_norm(module: nn.Module, layouts: Mapping[str, Layout]) -> Tensor:
    """The 2-norm of all gradients, each number counted once however many ranks hold it: one all-reduce of one
    number.
    """
    device = next(module.parameters()).device
    square = torch.zeros((), dtype=torch.float64, device=device)
    for name, layout in layouts.items():
        gradient = module.get_parameter(name).grad
        if gradient is not None:
            norm = torch.linalg.vector_norm(local_part(gradient))
            square = square + norm.to(torch.float64).square() / layout.copies
    dist.all_reduce(square)
    return square.sqrt()


def clip_by_norm(module: nn.Module, norm: Tensor, max_norm: float) -> None:
    """Scale every gradient by max_norm / (norm + 1e-6) where that is under one, as torch.nn.utils.clip_grad_norm_
    does.
    """
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for parameter in module.parameters():
        if parameter.grad is not None:
            local = local_part(parameter.grad)
            local.mul_(scale.to(local.dtype))
