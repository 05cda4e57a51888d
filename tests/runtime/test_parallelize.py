"""What `parallelize` refuses, and what it leaves behind."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import meshwright as mw
from meshwright.errors import MeshwrightError, PlanError
from meshwright.plan.groups import process_groups
from meshwright.runtime.owners import _PIECE, _checksum
from meshwright.train.launch import WorkerPool
from tests.parity.cases import FLAT, MIXED, ROLES, uniform
from tests.parity.harness import Case, batches, build, plan_of, recipe_of
from tests.parity.verdict import relative
from tests.runtime.counting import CountCollectives


def _refused(case: Case, change: str) -> str:
    module = build(case)
    plan = plan_of(case)
    if change == "module":
        module.get_submodule("model").register_parameter("extra", nn.Parameter(torch.zeros(3)))
    if change == "meta":
        module.get_submodule("lm_head").to("meta")
    if change == "dtype":
        module = module.float()
    if change == "eager":
        module.config._attn_implementation = "eager"
    if change == "twice":
        mw.parallelize(module, plan, recipe=recipe_of(case))
    if change == "missing":
        del module.get_submodule("model").norm
    try:
        mw.parallelize(module, plan, recipe=recipe_of(case))
    except MeshwrightError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("case", "change", "said"),
    [
        (ROLES["dp"], "module", "parameter 'model.extra' belongs to no layer of model"),
        (ROLES["dp"], "missing", "the module has no 'model.norm'"),
        (MIXED["zero3, then tp 4"], "eager", "attention 'eager' gets one mask for all layers, but 'decoder.2' divides"),
        (ROLES["zero3"], "twice", "this module is under a plan already"),
        (ROLES["dp"], "meta", "'lm_head.weight' has no values (it is on meta), and others have"),
        (
            ROLES["dp"],
            "dtype",
            "parameter 'model.embed_tokens.weight' is torch.float32, and the recipe keeps",
        ),
        (Case(uniform(all="tp"), {"all": 4}, execution={"kernels": "hf-eager"}, micro_batches=3), "", "micro"),
        (Case(uniform(all="dp"), {"all": 2}), "", "the plan is for 2 processes, but 4 run; start 2, or plan for 4"),
        (
            Case(uniform(all="dp/zero3"), {"all": 8}, micro_batches=1),
            "",
            "the plan is for 8 processes, but 4 run; start 8, or",
        ),
        (Case(uniform(all="ep"), FLAT), "", "ep"),
    ],
    ids=[
        "extra parameter",
        "missing module",
        "eager attention",
        "twice",
        "no values",
        "other dtype",
        "uneven micro-batches",
        "world too large",
        "world too small",
        "unproven split",
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(pool: WorkerPool, case: Case, change: str, said: str) -> None:
    assert all(said in message for message in pool.run(_refused, case, change))


def test_a_program_that_formed_no_group_is_told_how() -> None:
    module = build(ROLES["dp"])
    with pytest.raises(PlanError, match="has no process group yet: start the program with torchrun"):
        mw.parallelize(module, plan_of(ROLES["dp"]), recipe=recipe_of(ROLES["dp"]))


def _odd_one_out(change: str) -> str:
    """What every rank hears where the module of rank 2 alone is another."""
    case = ROLES["dp"]
    module = build(case)
    plan = plan_of(case)
    if dist.get_rank() == 2 and change == "extra":
        module.get_submodule("model").register_parameter("extra", nn.Parameter(torch.zeros(3)))
    if dist.get_rank() == 2 and change == "dtype":
        module = module.float()
    if dist.get_rank() == 2 and change == "plan":
        plan = plan_of(Case(uniform(all="ep"), FLAT))
    try:
        mw.parallelize(module, plan, recipe=recipe_of(case))
    except PlanError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("extra", "on rank 2: parameter 'model.extra' belongs to no layer of model"),
        ("dtype", "on rank 2: parameter 'model.embed_tokens.weight' is torch.float32"),
        ("plan", "on rank 2: the runtime cannot run this plan:\nstages.0.layers.0 (embed)"),
    ],
)
def test_what_one_rank_alone_finds_wrong_every_rank_hears(pool: WorkerPool, change: str, said: str) -> None:
    told = pool.run(_odd_one_out, change, timeout=20.0)
    assert len(set(told)) == 1
    assert told[0].startswith(said)


def _by_every_name(case: Case) -> tuple[bool, str]:
    """Whether a tied parameter and its gradient are the same by both names; and what is said of a name that is none."""
    parallel = mw.parallelize(build(case), plan_of(case), recipe=recipe_of(case))
    parallel.forward_backward(batches(case)[0])
    names = ("model.embed_tokens.weight", "lm_head.weight")
    pairs = [[ask(name) for name in names] for ask in (parallel.full_parameter, parallel.full_gradient)]
    try:
        parallel.full_parameter("lm_haed.weight")
    except PlanError as error:
        return all(torch.equal(*pair) and bool(pair[0].any()) for pair in pairs), str(error)
    return False, "accepted"


@pytest.mark.parametrize("name", ["dp", "zero3 and tp"])
def test_a_tied_parameter_answers_to_every_name(pool: WorkerPool, name: str) -> None:
    said = "the module has no parameter 'lm_haed.weight'; did you mean 'lm_head.weight'?"
    assert pool.run(_by_every_name, replace(ROLES[name], tied=True)) == [(True, said)] * 4


def _gathered_before_layers(case: Case) -> list[int]:
    """All-gathers that were started before the insides of each decoder layer ran, in the second step's forward."""
    module = build(case)
    parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    first, second, _ = batches(case)
    parallel.forward_backward(first)
    counting, seen = CountCollectives(), []

    def note(*_: Any) -> None:
        seen.append(sum(times for (kind, _), times in counting.counts.items() if kind == "all_gather"))

    for layer in module.get_submodule("model.layers").children():
        layer.self_attn.register_forward_pre_hook(note)
    with counting:
        parallel.forward_backward(second)
    return seen[:4]


@pytest.mark.parametrize(("ahead", "counts"), [(0, [2, 3, 4, 5]), (1, [3, 4, 5, 6]), (2, [4, 5, 6, 6])])
def test_prefetch_gathers_so_many_layers_ahead(pool: WorkerPool, ahead: int, counts: list[int]) -> None:
    """Of the embedding, four layers and the head."""
    case = replace(ROLES["zero3"], execution={"prefetch": ahead})
    assert pool.run(_gathered_before_layers, case) == [counts] * 4


def _logged(case: Case) -> list[str]:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("meshwright.runtime.parallelize")
    logger.addHandler(handler)
    try:
        mw.parallelize(build(case), plan_of(case), recipe=recipe_of(case))
    finally:
        logger.removeHandler(handler)
    return heard


def test_what_has_no_effect_is_said_by_one_rank(pool: WorkerPool) -> None:
    first, *others = pool.run(_logged, replace(ROLES["dp"], execution={"kernels": "megatron-flash"}))
    assert [line for line in first if "kernels" in line] == [
        "execution.kernels: kernels 'megatron-flash' have no effect in the runtime, which runs the module as it is; "
        "write 'hf-sdpa', and the estimate is of what runs [runtime-kernels]"
    ]
    assert others == [[]] * 3


def _state(case: Case) -> tuple[int, int, dict[str, tuple[int, ...]]]:
    module = build(case)
    whole = sum(parameter.numel() for parameter in module.parameters())
    parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    parts = {name: tuple(_local(parameter).shape) for name, parameter in module.named_parameters()}
    return whole, sum(_local(parameter).numel() for parameter in parallel.module.parameters()), parts


def _local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def test_a_rank_holds_only_its_part(pool: WorkerPool) -> None:
    for whole, held, _ in pool.run(_state, ROLES["zero3"]):
        assert held * 4 == whole
    for _, _, parts in pool.run(_state, MIXED["tp 4, then tp 2 with zero3"]):
        assert parts["model.layers.0.self_attn.q_proj.weight"] == (8, 32)
        assert parts["model.layers.2.self_attn.q_proj.weight"] == (8, 32)
        assert parts["model.layers.2.input_layernorm.weight"] == (16,)
        assert parts["lm_head.weight"] == (16, 32)


def _group_count(case: Case) -> tuple[int, int]:
    from meshwright.runtime import mesh

    mesh._made_in.cache_clear()
    module = build(case)
    plan = plan_of(case)
    parallel = mw.parallelize(module, plan, recipe=recipe_of(case))
    distinct = {frozenset(ranks) for each in process_groups(plan) for ranks in each.ranks} | {frozenset(range(4))}
    return len(parallel.place.processes._made.handles), len(distinct)


def test_there_are_no_more_process_groups_than_sets_of_ranks(pool: WorkerPool) -> None:
    assert all(made == distinct for made, distinct in pool.run(_group_count, ROLES["zero3 and tp"]))


def _bad_batch(batch: dict[str, torch.Tensor], case: Case) -> str:
    module = build(case)
    parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    try:
        parallel.forward_backward(batch)
    except PlanError as error:
        return str(error)
    return "accepted"


def test_a_batch_that_is_not_the_plans_is_refused(pool: WorkerPool) -> None:
    ids = torch.zeros(6, 12, dtype=torch.int64)
    assert pool.run(_bad_batch, {"input_ids": ids}, ROLES["dp"]) == ["the batch has no 'labels'; it has: input_ids"] * 4
    whole = torch.zeros(8, 12, dtype=torch.int64)
    told = pool.run(_bad_batch, {"input_ids": whole + 64, "labels": whole}, ROLES["tp"])
    assert told == ["batch['input_ids'] has the token 64; the model's vocabulary is 0 to 63"] * 4
    told = pool.run(_bad_batch, {"input_ids": whole, "labels": whole - 1}, ROLES["tp"])
    assert told == ["batch['labels'] has the token -1; the model's vocabulary is 0 to 63"] * 4
    said = "batch['input_ids'] has 6 samples; the plan's global batch is 8"
    assert pool.run(_bad_batch, {"input_ids": ids, "labels": ids}, ROLES["dp"]) == [said] * 4


def test_a_mask_for_layers_that_divide_the_samples_otherwise_is_refused(pool: WorkerPool) -> None:
    ids = torch.zeros(8, 12, dtype=torch.int64)
    batch = {"input_ids": ids, "labels": ids, "attention_mask": ids}
    said = "batch['attention_mask'] is one input for all layers, but 'decoder.2' divides the samples otherwise"
    assert all(said in message for message in pool.run(_bad_batch, batch, MIXED["tp 4, then tp 2 with zero3"]))


def _built_from_own_seed() -> str:
    case = ROLES["dp"]
    module = build(case)
    if dist.get_rank() == 2:
        with torch.no_grad():
            module.get_parameter("model.layers.1.mlp.up_proj.weight").mul_(1.001)
    try:
        mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    except PlanError as error:
        return str(error)
    return "accepted"


def test_ranks_that_start_from_other_values_are_told_so(pool: WorkerPool) -> None:
    said = "parameter 'model.layers.1.mlp.up_proj.weight' has other values on other ranks"
    assert all(said in message for message in pool.run(_built_from_own_seed))


def _twice(case: Case) -> list[float]:
    """How far the gradients of two calls are from twice those of one, at most, for each parameter."""
    module = build(case)
    parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    batch = batches(case)[0]
    parallel.forward_backward(batch)
    once = {name: parallel.full_gradient(name) for name in parallel.layouts}
    parallel.forward_backward(batch)
    return [relative(parallel.full_gradient(name), 2 * once[name]) for name in once]


@pytest.mark.parametrize("name", ["dp", "zero3", "hybrid shards", "dp and tp"])
def test_gradients_of_two_calls_add_up(pool: WorkerPool, name: str) -> None:
    assert max(max(found) for found in pool.run(_twice, ROLES[name])) < 1e-12


def _stepped(case: Case, foreach: bool) -> dict[str, torch.Tensor]:
    module = build(case)
    parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
    optimizer = torch.optim.AdamW(parallel.parameter_groups(), foreach=foreach)
    parallel.forward_backward(batches(case)[0])
    optimizer.step()
    return {name: parallel.full_parameter(name) for name in parallel.layouts}


def test_optimizers_that_take_no_mixture_run_on_the_groups(pool: WorkerPool) -> None:
    case = MIXED["tp 4, then tp 2 with zero3"]
    one, many = pool.run(_stepped, case, False)[0], pool.run(_stepped, case, True)[0]
    assert max(relative(many[name], one[name]) for name in one) < 1e-12


def test_a_checksum_sees_places_and_no_order_of_summation() -> None:
    values = torch.randn(3 * _PIECE // 2)
    total = _checksum(values)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert _checksum(values.clone()) == total
    torch.set_num_threads(1)
    assert _checksum(values.flip(0)) != total
