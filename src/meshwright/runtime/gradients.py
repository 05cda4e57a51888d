"""What happens to gradients between backward and the optimizer: summed over replicas, measured, clipped."""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.runtime.mesh import Peers
from meshwright.runtime.shard import Layout, local_part


def sum_replicas(module: nn.Module, layouts: Mapping[str, Layout], bucket_mib: float) -> None:
    """All-reduce, layer by layer in buckets, the gradients of what several ranks hold whole."""
    for peers, gradients in _by_unit(module, layouts):
        for bucket in _buckets(gradients, bucket_mib * 2**20):
            flat = peers.all_reduce(torch.cat([gradient.reshape(-1) for gradient in bucket]))
            sizes = [gradient.numel() for gradient in bucket]
            for gradient, summed in zip(bucket, torch.split(flat, sizes), strict=True):
                gradient.copy_(summed.view_as(gradient))


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


def _by_unit(module: nn.Module, layouts: Mapping[str, Layout]) -> Iterable[tuple[Peers, list[Tensor]]]:
    """The gradients to sum, for each unit and group of replicas, in the order of the layouts (the same on every
    rank).
    """
    found: dict[tuple[str, str, tuple[int, ...]], tuple[Peers, list[Tensor]]] = {}
    for name, layout in layouts.items():
        gradient = module.get_parameter(name).grad
        if gradient is None:
            continue
        for why, peers in layout.summed:
            found.setdefault((layout.unit, why, peers.ranks), (peers, []))[1].append(local_part(gradient))
    return found.values()


def _buckets(gradients: list[Tensor], limit: float) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (size + gradient.nbytes > limit or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket


def global_norm(module: nn.Module, layouts: Mapping[str, Layout]) -> Tensor:
    """The 2-norm of all gradients, each number counted once however many ranks hold it: one all-reduce of one
    number.
    """
    square = torch.zeros((), dtype=torch.float64)
    for name, layout in layouts.items():
        gradient = module.get_parameter(name).grad
        if gradient is not None:
            square = square + local_part(gradient).to(torch.float64).square().sum().cpu() / layout.copies
    device = next(module.parameters()).device
    total = square.to(device)
    dist.all_reduce(total)
    return total.sqrt()


def clip_by_norm(module: nn.Module, norm: Tensor, max_norm: float) -> None:
    """Scale every gradient by max_norm / (norm + 1e-6) where that is under one, as torch.nn.utils.clip_grad_norm_
    does.
    """
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for parameter in module.parameters():
        if parameter.grad is not None:
            local = local_part(parameter.grad)
            local.mul_(scale.to(local.dtype))
