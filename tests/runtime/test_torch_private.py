"""Names of torch's that are not public still do what we use them for."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from meshwright.runtime.torch_private import (
    CORES,
    PRODUCTS,
    backward_for_input,
    backward_for_weights,
    multiply_all,
    norms_of,
    tensors_in,
    writes_of,
)


def test_the_halves_of_a_backward_are_the_whole_one() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.LayerNorm(4)).double()
    x, gradient = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    whole = x.clone().requires_grad_()
    torch.autograd.backward(module(whole), gradient)
    wanted = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad()
    half = x.clone().requires_grad_()
    weights = list(module.parameters())
    found, rest = backward_for_input(module(half), gradient, half, weights)
    assert whole.grad is not None
    assert torch.equal(found, whole.grad)
    assert all(weight.grad is None for weight in weights), "the second half has not come yet"
    backward_for_weights(weights, rest)
    for weight, each in zip(weights, wanted, strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, each, rtol=1e-13)


def test_many_tensors_are_measured_and_scaled_as_each_by_itself() -> None:
    tensors = [torch.full((2, 2), 3.0), torch.empty(0), torch.tensor([3.0, 4.0])]
    assert [float(each) for each in norms_of(tensors)] == [6.0, 0.0, 5.0]
    multiply_all(tensors, torch.tensor(0.5))
    assert [each.tolist() for each in tensors] == [[[1.5, 1.5], [1.5, 1.5]], [], [1.5, 2.0]]


def test_writes_in_place_are_counted_by_whatever_name() -> None:
    tensor = torch.zeros(2, 3)
    alias, copy, before = tensor.detach(), tensor.clone(), writes_of(tensor)
    tensor.view(3, 2).add_(1.0)
    assert writes_of(alias) == writes_of(tensor) == before + 1
    assert writes_of(copy) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_products_and_attentions_run_the_kernels_that_recompute_knows(dtype: torch.dtype) -> None:
    ran = list[Any]()

    def note(_: Any, kernel: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        ran.append(kernel)
        return CheckpointPolicy.PREFER_RECOMPUTE

    x = torch.randn(2, 4, 8, 8, dtype=dtype, requires_grad=True)
    products = (nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Conv2d(4, 4, 3))
    calls = [(PRODUCTS, each.to(dtype)) for each in products]
    calls.append((CORES, lambda y: functional.scaled_dot_product_attention(y, y, y, is_causal=True)))
    for kernels, call in calls:
        ran.clear()
        first, _ = create_selective_checkpoint_contexts(note)  # type: ignore[no-untyped-call]
        with first:
            call(x)
        assert sum(kernel in kernels for kernel in ran) == 1, ran


def test_tensors_are_found_in_what_operators_put_out() -> None:
    one, other = torch.zeros(1), torch.ones(1)
    assert tensors_in((one, None, [3, other])) == [one, other]
    assert tensors_in(one) == [one]
