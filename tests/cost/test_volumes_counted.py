"""The bytes counted equal the bytes predicted: the runtime's collectives on four gloo processes, against `volumes`."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright.cost.volumes import step_collectives  # noqa: E402
from meshwright.plan.resolve import plan_inputs  # noqa: E402
from meshwright.train.launch import WorkerPool  # noqa: E402
from tests.parity.cases import every  # noqa: E402
from tests.parity.harness import CLIP, Case, batches, build, plan_of, recipe_of  # noqa: E402

KINDS = {
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "exchange",
}
"""torch's operator → our kind."""

CASES = every()
COUNTED = [
    "llama: dp",
    "llama: tp",
    "llama: hybrid shards",
    "llama: zero3 reduced once",
    "llama: zero3, then tp 4",
    "llama: axes change places",
    "llama tied: zero3",
    "gpt2 tied with dropout: zero3 and tp",
]


class _Counted(TorchDispatchMode):
    """Notes every collective of torch.distributed: its kind, and the bytes of its whole tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, and note it."""
        out = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            name = func.__name__.split(".")[0]
            sizes = [leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            listed = sum(leaf.nbytes for leaf in tree_leaves(args[0]) if isinstance(leaf, torch.Tensor))
            self.bytes[KINDS[name]] += listed if name == "allgather_" else max(sizes)
            self.calls[KINDS[name]] += 1
        return out


def count_step(case: Case) -> tuple[Counter[str], Counter[str]]:
    """Runs on every rank: (bytes, calls) by kind of the second step, when all that is made once has been made."""
    module = build(case)
    parallel = mw.parallelize(module, plan_of(case, module), recipe=recipe_of(case))
    first, second, *_ = batches(case)
    parallel.forward_backward(first)
    for parameter in parallel.parameters():
        parameter.grad = None
    with _Counted() as counted:
        parallel.forward_backward(second)
        parallel.clip_grad_norm_(CLIP)
    return counted.bytes, counted.calls


@pytest.mark.parametrize("name", COUNTED)
def test_the_bytes_counted_equal_the_bytes_predicted(pool: WorkerPool, name: str) -> None:
    case = replace(CASES[name], dropout=0.0)
    module = build(case)
    given = plan_inputs(plan_of(case, module), model=module.config, recipe=recipe_of(case))
    size: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for one in step_collectives(given):
        size[one.kind] += int(one.bytes * one.count)
        calls[one.kind] += one.count
    ranks = pool.run(count_step, case, timeout=90.0)
    busiest = {kind: max(counted[kind] for counted, _ in ranks) for kind in size}
    assert busiest == dict(size)
    assert all(counted == calls for _, counted in ranks)
