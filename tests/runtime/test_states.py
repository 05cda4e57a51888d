"""What each rank keeps of parameters, gradients and optimizer states is what `cost.layer_states` says, to the byte."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.cost.layer_states import States, layer_states
from meshwright.cost.placement import Placement
from meshwright.plan.resolve import read_inputs
from meshwright.runtime.shard import local_part
from meshwright.train.launch import WorkerPool
from tests.parity.cases import FLAT, ROLES, SPLITS, SQUARE, uniform
from tests.parity.harness import Case, batches, build, in_float32, optimizer_of, plan_of, recipe_of

CASES = {
    "dp": ROLES["dp"],
    "zero1": Case(uniform(all="dp/zero1"), FLAT),
    "zero2": Case(uniform(all="dp/zero2"), FLAT),
    "zero3": ROLES["zero3"],
    "hybrid shards": ROLES["hybrid shards"],
    "zero1 and tp, tied": Case(uniform(node="dp/zero1", gpu="tp"), SQUARE, "gpt2", tied=True),
    "zero3 and tp": ROLES["zero3 and tp"],
    "states side by side": SPLITS["states side by side"],
}


class Kept(NamedTuple):
    """Bytes on one rank."""

    parameters: float
    """As the module has them between two micro-batches."""
    gradients: float
    """Between two micro-batches."""
    optimizer: float
    """After a step."""


def _counted(case: Case) -> Kept:
    with torch.device("meta"):
        module = build(case)
    parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    resting, between = list(module.parameters()), []

    def note(*_: Any) -> None:
        now = list(module.parameters())  # FSDP2 puts gathered ones in the place of shards
        every = {id(each): each for each in [*resting, *now]}.values()
        between.append((_bytes(now), _bytes([each.grad for each in every if each.grad is not None])))

    module.register_forward_pre_hook(note)
    optimizer = optimizer_of(parallel.parameter_groups())
    parallel.forward_backward(batches(case)[0])
    optimizer.step()
    moments = [tensor for state in optimizer.state.values() for name, tensor in state.items() if name != "step"]
    return Kept(*between[1], _bytes(moments))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(local_part(each).nbytes for each in tensors)


def _predicted(case: Case) -> Kept:
    module: nn.Module = build(case)
    inputs = read_inputs(plan_of(case), model=module.config, recipe=recipe_of(case))
    placement, found = Placement(inputs), States()
    for layer in inputs.model.layers:
        found = found.plus(layer_states(placement, placement.block_of[layer.name]))
    return Kept(*found[:3])


@pytest.mark.parametrize("case", [in_float32(case) for case in CASES.values()], ids=CASES)
def test_a_rank_keeps_what_the_formulas_say(pool: WorkerPool, case: Case) -> None:
    assert set(pool.run(_counted, case)) == {_predicted(case)}
