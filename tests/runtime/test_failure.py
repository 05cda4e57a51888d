"""A rank that raises or dies, whatever it does at the time, ends all ranks soon, with one message that says where."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import meshwright as mw
from meshwright.runtime import parallel_model
from meshwright.runtime.border import Border
from meshwright.train.launch import WorkerError, WorkerPool, emit
from tests.parity.harness import CLIP, Case, batches, build, optimizer_of, plan_of, recipe_of
from tests.parity.pipelines import DP, TWO, staged

CASE = Case({}, {}, groups=TWO, stages=staged("ab", DP), layers=4)
LAYERS, CULPRIT = "(decoder.2-3, head)", 2
Blow = Callable[..., Any]


def _raise(*_: Any, **__: Any) -> None:
    raise ValueError("a pipe burst")


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


BLOWS: dict[str, tuple[Blow, str]] = {
    "raises": (_raise, "rank 2 of 4: ValueError: a pipe burst"),
    "dies": (_die, "rank 2 of 4: killed by SIGKILL"),
}


def _in_forward(parallel: Any, blow: Blow) -> None:
    parallel.module.get_submodule("model.layers.3.mlp").register_forward_pre_hook(blow)


def _in_backward(parallel: Any, blow: Blow) -> None:
    def hook(_: Any, __: Any, output: torch.Tensor) -> None:
        output.register_hook(blow)

    parallel.module.get_submodule("model.layers.2.mlp").register_forward_hook(hook)


def _in_reduction(_: Any, blow: Blow) -> None:
    mock.patch.object(parallel_model, "sum_replicas", blow).start()


def _in_send(_: Any, blow: Blow) -> None:
    mock.patch.object(Border, "send", blow).start()


def _in_receive(_: Any, blow: Blow) -> None:
    mock.patch.object(Border, "receive", blow).start()


def _in_clipping(_: Any, blow: Blow) -> None:
    mock.patch.object(parallel_model, "global_norm", blow).start()


def _in_optimizer(_: Any, blow: Blow) -> None:
    mock.patch.object(torch.optim.AdamW, "step", blow).start()


PHASES: dict[str, tuple[Callable[[Any, Blow], None], str]] = {
    "forward": (_in_forward, f"in layer decoder.3 of stage 1 {LAYERS}: forward of micro-batch 0"),
    "backward": (_in_backward, f"in layer decoder.2 of stage 1 {LAYERS}: backward of micro-batch 0"),
    "reduction": (_in_reduction, f"in stage 1 {LAYERS}: summing gradients over replicas"),
    "send": (_in_send, f"in stage 1 {LAYERS}: sending gradients of micro-batch 0 to stage 0"),
    "receive": (_in_receive, f"in stage 1 {LAYERS}: receiving activations of micro-batch 0 from stage 0"),
    "clipping": (_in_clipping, f"in stage 1 {LAYERS}: measuring the gradients' norm"),
    "optimizer": (_in_optimizer, f"in stage 1 {LAYERS}: what its program does between steps: the optimizer"),
}
"""Where a rank fails → how, and what the message says of it."""


def _trained(case: Case, plant: Callable[[Any, Blow], None], blow: Blow) -> None:
    emit(os.getpid())
    parallel = mw.parallelize(build(case), plan_of(case), recipe=recipe_of(case))
    optimizer = optimizer_of(parallel.parameter_groups())
    if dist.get_rank() == CULPRIT:
        plant(parallel, blow)
    for batch in batches(case):
        parallel.forward_backward(batch)
        parallel.clip_grad_norm_(CLIP)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("how", BLOWS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_fails_ends_all_and_says_where(pool: WorkerPool, phase: str, how: str) -> None:
    (plant, where), (blow, said) = PHASES[phase], BLOWS[how]
    pids: list[int] = []
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        pool.run(_trained, CASE, plant, blow, on_message=lambda _, pid: pids.append(pid))
    assert time.monotonic() - began < 30
    assert caught.value.ranks == (CULPRIT,)
    message = str(caught.value)
    assert message.startswith(said)
    assert f"it stood on rank 2, {where}" in message
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_is_raised_carries_where_it_was_without_a_pool_that_listens() -> None:
    standing = _standing()
    with pytest.raises(ValueError, match="burst") as caught, standing.at("forward of micro-batch 1", 0):
        _raise()
    assert caught.value.__notes__ == ["on rank 0, in stage 0 (embed): forward of micro-batch 1"]


def _standing() -> Any:
    from types import SimpleNamespace

    from meshwright.runtime.failure import Standing

    layers = [SimpleNamespace(layer="embed")]
    place = SimpleNamespace(processes=SimpleNamespace(rank=0), stages=(0,), of_stage=lambda _: layers)
    return Standing(place)  # type: ignore[arg-type]
