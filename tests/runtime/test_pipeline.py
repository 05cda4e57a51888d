"""What a pipeline leaves on a rank."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import meshwright as mw
from meshwright.plan.groups import process_groups
from meshwright.runtime import mesh
from meshwright.runtime.shard import local_part
from meshwright.train.launch import WorkerPool
from tests.parity.harness import Case, batches, build, plan_of, recipe_of
from tests.parity.pipelines import PIPELINES
from tests.parity.verdict import relative

ZERO3_TIED = replace(PIPELINES["1f1b, zero3 tied"], dropout=0.0)
NAMES = ("transformer.wte.weight", "lm_head.weight")


def _parallel(case: Case) -> Any:
    module = build(case)
    return mw.parallelize(module, plan_of(case), recipe=recipe_of(case))


def _looked_at(case: Case) -> tuple[dict[str, int], list[float], bool, tuple[int, int]]:
    """Numbers that this rank holds of each parameter; how far gradients of two calls are from twice those of one;
    whether a tied parameter is the same by both names; process groups made, and how many are needed.
    """
    mesh._made_in.cache_clear()
    parallel, batch = _parallel(case), batches(case)[0]
    held = {name: local_part(each).numel() for name, each in parallel.module.named_parameters()}
    parallel.forward_backward(batch)
    once = {name: parallel.full_gradient(name) for name in parallel.names}
    parallel.forward_backward(batch)
    doubled = [relative(parallel.full_gradient(name), 2 * once[name]) for name in once]
    same = torch.equal(*(parallel.full_parameter(name) for name in NAMES))
    ties = parallel.place.inputs.model.tied_layers
    sets = [each.ranks for each in process_groups(parallel.plan, ties) if each.purpose != "pipeline"]
    distinct = {ranks for lists in sets for ranks in lists} | {tuple(range(dist.get_world_size()))}
    return held, doubled, same, (len(parallel.place.processes._made.handles), len(distinct))


def test_a_rank_holds_its_stage_alone_and_knows_every_parameter_by_all_its_names(pool: WorkerPool) -> None:
    module = build(ZERO3_TIED)
    whole = {name: each.numel() for name, each in module.named_parameters(remove_duplicate=False)}
    for rank, (held, doubled, same, groups) in enumerate(pool.run(_looked_at, ZERO3_TIED)):
        layers = ("transformer.wte", "transformer.wpe", "transformer.h.0.", "transformer.h.1.")
        mine = {name for name in whole if name.startswith(layers) == (rank < 2)}
        assert held == {name: whole[name] / 2 for name in mine}
        assert max(doubled) < 1e-12
        assert same
        assert groups[0] == groups[1]
