"""Masters in float32 beside what is computed with in bf16: what rests, moves and is stepped in which dtype."""

from typing import Any

import pytest
import torch
from torch import Tensor

import meshwright as mw
from meshwright.errors import PlanError
from meshwright.runtime.owners import check_dtypes
from meshwright.runtime.shard import local_part
from meshwright.train.launch import WorkerPool
from tests.parity.cases import SPLITS
from tests.parity.harness import batches, build, in_bf16, plan_of, recipe_of

CASE = in_bf16(SPLITS["states side by side"])
"""Every state, and none."""
NAME = "model.layers.1.mlp.up_proj.weight"


def _looked_at() -> tuple[set[torch.dtype], set[torch.dtype], set[torch.dtype], Tensor, Tensor]:
    """Dtypes of what layers put out, of gradients, of the optimizer's states; a parameter before and after a step."""
    parallel: Any = mw.parallelize(build(CASE), plan_of(CASE), recipe=recipe_of(CASE))
    computed = set[torch.dtype]()
    for layer in parallel.module.model.layers:
        layer.register_forward_hook(lambda _, __, output: computed.add(output.dtype))
    optimizer = torch.optim.SGD(parallel.parameter_groups(), lr=1e-6, momentum=0.9)
    before = parallel.full_parameter(NAME)
    parallel.forward_backward(batches(CASE)[0])
    gradients = {local_part(each.grad).dtype for each in parallel.module.parameters()}
    optimizer.step()
    states = {local_part(each["momentum_buffer"]).dtype for each in optimizer.state.values()}
    return computed, gradients, states, before, parallel.full_parameter(NAME)


def test_what_a_step_changes_is_finer_than_what_is_computed_with(pool: WorkerPool) -> None:
    for computed, gradients, states, before, after in pool.run(_looked_at):
        assert computed == {torch.bfloat16}
        assert gradients == states == {before.dtype} == {torch.float32}
        assert not torch.equal(before, after)
        assert (before.bfloat16() == after.bfloat16()).float().mean() > 0.99


def test_a_module_of_another_dtype_than_the_masters_is_refused() -> None:
    with pytest.raises(PlanError, match=r"is torch.bfloat16, and the recipe keeps torch.float32: convert one"):
        check_dtypes(build(CASE).bfloat16(), torch.float32)
