"""The one GPU that a machine may have does arithmetic as the CPU does. `make test-gpu` runs what is marked `gpu`."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use (torch.cuda.is_available())"),
]


def test_float64_matmul_on_the_gpu_equals_the_cpu() -> None:
    a, b = torch.randn(2, 256, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = torch.cuda.memory_allocated()
    a_gpu, b_gpu = a.cuda(), b.cuda()
    assert torch.cuda.memory_allocated() >= before + a.nbytes + b.nbytes
    torch.testing.assert_close((a_gpu @ b_gpu).cpu(), a @ b, rtol=1e-12, atol=1e-12)
