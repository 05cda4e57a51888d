"""The search against brute force: every plan of small spaces, written out and estimated one by one."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any, Literal, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cost.estimate import estimate_placement
from meshwright.cost.placement import Placement
from meshwright.errors import PlanError
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.spec import Plan
from meshwright.plan.stage_cut import even_counts, numbered_layers
from meshwright.plan.words import Schedule
from meshwright.recipe.spec import Recipe
from meshwright.search.answer import Answer, fits_within
from meshwright.search.explain import alternatives
from meshwright.search.planner import Search
from meshwright.search.problem import Problem, Wishes
from meshwright.search.space import divisors
from tests.cost.build import llama

SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 8192}


def plans(model: ModelSpec, cluster: str, recipe: Recipe, wishes: Wishes) -> Iterator[Plan]:
    """Every uniform split with every cut under 1f1b, state, number of micro-batches, and recompute by counts."""
    world, layers = mw.cluster(cluster).size, [layer for layer in model.layers if layer.index is not None]
    for pp in divisors(world):
        for tp in (size for size in divisors(world // pp) if wishes.tp in (None, size)):
            dp = world // pp // tp
            for count in divisors(recipe.global_batch // dp) if recipe.global_batch % dp == 0 else []:
                for zero in (0, 1, 2, 3) if dp > 1 else (0,):
                    for inner in combinations(range(1, len(layers)), pp - 1):
                        sizes = [b - a for a, b in zip((0, *inner), (*inner, len(layers)), strict=True)]
                        for shard in (None, 2) if cluster == "2x2xh100" and dp == 4 and zero else (None,):
                            with suppress(PlanError):  # no head for each of three ranks
                                plain = mw.uniform_plan(
                                    model, cluster, recipe, tp=tp, pp=pp, zero=zero, micro_batches=count, sp=tp > 1,
                                    layers_per_stage=sizes, shard=shard,
                                )  # fmt: skip
                                yield from recomputed(plain, sizes, wishes.recomputes)


def recomputed(plan: Plan, sizes: list[int], names: tuple[str, ...]) -> Iterator[Plan]:
    """The plan with so many of the numbered layers of each stage under each recompute."""
    for counts in product(*(deals(size, len(names)) for size in sizes)):
        stages, start = [], 0
        for stage, size, deal in zip(plan.stages, sizes, counts, strict=True):
            first, rows = start, []
            for row in stage.layers:
                if not row.span.startswith("decoder"):
                    rows.append(row)
                    continue
                place = first
                for name, count in zip(names, deal, strict=True):
                    if count:
                        span = f"decoder.{place}" if count == 1 else f"decoder.{place}-{place + count - 1}"
                        rows.append(row.model_copy(update={"span": span, "recompute": name}))
                    place += count
            start += size
            stages.append(stage.model_copy(update={"layers": tuple(rows)}))
        yield plan.model_copy(update={"stages": tuple(stages)})


def deals(total: int, parts: int) -> list[tuple[int, ...]]:
    return [taken for taken in product(range(total + 1), repeat=parts) if sum(taken) == total]


def least(problem: Problem, plans: Iterable[Plan]) -> float | None:
    """The least step time of all plans that fit."""
    best = None
    for plan in plans:
        inputs = Inputs(plan, problem.model, problem.cluster, problem.recipe)
        if any(each.severity == "error" for each in check_plan(inputs)):
            continue
        found = estimate_placement(Placement(inputs))
        if fits_within(found, problem.wishes.memory_limit):
            best = found.step_time_s if best is None else min(best, found.step_time_s)
    return best


def searched(problem: Problem) -> Answer | None:
    try:
        return Search(problem).run()
    except PlanError:
        return None


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    layers=st.integers(2, 3),
    cluster=st.sampled_from(["2xh100", "4xa100-40gb", "3xh100", "2x2xh100"]),
    batch=st.sampled_from([6, 12]),
    limit=st.sampled_from([None, 4.5e9, 5.5e9, 7e9]),
    recompute=st.sampled_from([(), ("selective",)]),
)
def test_small_spaces_have_the_best_of_all_plans(
    layers: int, cluster: str, batch: int, limit: float | None, recompute: tuple[str, ...]
) -> None:
    model = llama(num_hidden_layers=layers, **SIZES)
    recipe = mw.recipe(global_batch=batch, sequence=2048)
    forbid = ("cp", "ulysses", "unlike", *recompute)
    wishes = Wishes(gap=0.0, forbid=forbid, memory_limit=limit, schedule="1f1b", time_limit=600.0)
    problem = Problem(model, mw.cluster(cluster), recipe, wishes)
    best = least(problem, plans(model, cluster, recipe, wishes))
    answer = searched(problem)
    assert (best is None) == (answer is None)
    if best is not None and answer is not None:
        assert answer.estimate.step_time_s == pytest.approx(best, rel=1e-9)
        assert answer.bound <= best * (1 + 1e-9)
        loose = Search(problem._replace(wishes=Wishes(forbid=forbid, memory_limit=limit, schedule="1f1b"))).run()
        assert loose.bound <= best * (1 + 1e-9)
        assert loose.estimate.step_time_s <= best * 1.02


def piped(problem: Problem, cluster: str, schedule: Schedule, virtual: int) -> Iterator[Plan]:
    """Every plan of two groups: cuts where a group has one stage, states, micro-batches, and recompute by counts."""
    model, layers, dp = problem.model, len(numbered_layers(problem.model)), problem.cluster.size // 2
    stages, states = 2 * virtual, cast(tuple[Literal[0, 1, 2, 3], ...], (0, 1, 2, 3) if dp > 1 else (0,))
    cuts = [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]
    sizes = [[b - a for a, b in pairwise(cut)] for cut in cuts] if virtual == 1 else [even_counts(layers, stages)]
    for count in divisors(problem.recipe.global_batch // dp):
        for zero, own in product(states, sizes):
            with suppress(PlanError):  # too few micro-batches
                plain = mw.uniform_plan(
                    model, cluster, problem.recipe, pp=2, zero=zero, micro_batches=count, schedule=schedule,
                    virtual=virtual if schedule == "interleaved" else 1, layers_per_stage=own,
                )  # fmt: skip
                yield from recomputed(plain, list(own), problem.wishes.recomputes)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedule=st.sampled_from([("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zbv", 2), ("dualpipev", 2)]),
    cluster=st.sampled_from(["2xh100", "4xh100"]),
    limit=st.sampled_from([None, 3.5e9, 4e9, 5e9]),
)
def test_every_schedule_has_the_best_of_all_its_plans(
    schedule: tuple[Schedule, int], cluster: str, limit: float | None
) -> None:
    word, virtual = schedule
    model, recipe = llama(num_hidden_layers=2 + virtual, **SIZES), mw.recipe(global_batch=8, sequence=2048)
    alone = Wishes(
        gap=0.0, forbid=("cp", "ulysses", "unlike", "tp"), memory_limit=limit, schedule=word, pp=2, time_limit=600.0,
        virtual=virtual if word == "interleaved" else None,
    )  # fmt: skip
    problem = Problem(model, mw.cluster(cluster), recipe, alone)
    best, answer = least(problem, piped(problem, cluster, word, virtual)), searched(problem)
    assert (best is None) == (answer is None)
    if best is not None and answer is not None:
        assert answer.estimate.step_time_s == pytest.approx(best, rel=1e-9)
        loose = Search(problem._replace(wishes=replace(alone, gap=0.01))).run()
        assert loose.bound <= best * (1 + 1e-9)
        assert loose.estimate.step_time_s <= best * 1.02


def test_a_search_without_a_gap_ends_in_time_where_there_are_too_many_plans() -> None:
    found = mw.plan(*GIVEN, mw.recipe(global_batch=64, sequence=8192), pp=4, gap=0.0, time_limit=2.0)
    assert found.estimate.fits
    assert found.search_s < 10


GIVEN = ("llama-3.1-8b", "8xh100")


@pytest.fixture(scope="module")
def answer() -> Answer:
    return mw.plan(*GIVEN, mw.recipe(global_batch=64, sequence=8192))


def test_the_answer_is_a_sound_plan_that_fits_and_its_estimate_is_that_of_estimate(answer: Answer) -> None:
    again = mw.estimate(answer.plan)
    assert again.fits
    assert again.step_time_s == answer.estimate.step_time_s
    assert answer.plan.world_size == 8
    assert 0 <= answer.gap <= 0.03


def test_no_plan_of_another_kind_is_faster(answer: Answer) -> None:
    others = alternatives(answer)
    assert others
    assert all(each.slower >= 0 and each.why for each in others if each.candidate.fits)


@pytest.mark.parametrize(
    ("wishes", "holds"),
    [
        ({"tp": 2}, lambda plan: "tp" in plan.groups["a"].mesh and plan.groups["a"].mesh["tp"] == 2),
        ({"pp": 4, "schedule": "1f1b"}, lambda plan: len(plan.groups) == 4),
        ({"zero": 1}, lambda plan: plan.stages[0].layers[0].state == "zero1"),
        ({"micro_batches": 8}, lambda plan: plan.micro_batches == 8),
        ({"forbid": ("cp", "ulysses")}, lambda plan: set(plan.groups["a"].mesh) <= {"tp", "dp"}),
        ({"recompute": "full"}, lambda plan: all(row.recompute == "full" for row in plan.stages[0].layers[1:-1])),
    ],
)
def test_wishes_hold(wishes: dict[str, Any], holds: Callable[[Plan], bool]) -> None:
    found = mw.plan(*GIVEN, mw.recipe(global_batch=64, sequence=8192), **wishes)
    assert holds(found.plan)
    assert found.estimate.fits


def test_a_memory_limit_holds_and_costs() -> None:
    recipe = mw.recipe(global_batch=64, sequence=8192)
    tight = mw.plan(*GIVEN, recipe, memory_limit=40e9, schedule="1f1b")
    free = mw.plan(*GIVEN, recipe, schedule="1f1b")
    assert all(each.asked.chance_above(40e9) <= 0.1 for each in tight.estimate.memory)
    assert tight.estimate.step_time_s >= free.bound


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"forbid": ("zero4",)}, "'zero4' cannot be forbidden; did you mean"),
        ({"tp": 2, "forbid": ("tp",)}, "tp is fixed to 2 and forbidden"),
        ({"zero": 3, "forbid": ("zero3",)}, "zero is fixed to 3, and zero3 is forbidden"),
        ({"scope": "nanotron"}, "--for: no scope is called 'nanotron'; did you mean 'megatron'"),
        ({"micro_batch": 1, "micro_batches": 4}, "say the same thing in two ways"),
        ({"tp": 3}, "no degrees fill the 8 devices of '8xh100'"),
        ({"memory_limit": 5e9}, "no plan fits"),
        ({"tps": 3}, "'tps' is no wish; did you mean"),
        ({"pp": 0}, "pp counts from 1 on"),
    ],
)
def test_what_cannot_be_is_said(wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=re.escape(said)):
        mw.plan(*GIVEN, mw.recipe(global_batch=64, sequence=8192), **wishes)


def test_a_recipe_that_the_runtime_does_not_run_is_said() -> None:
    half = mw.recipe(global_batch=64, sequence=8192, precision={"compute": "fp16"})
    with pytest.raises(PlanError, match="the runtime does not run 'compute: fp16' yet"):
        mw.plan(*GIVEN, half, scope="runtime")


def test_a_time_limit_answers_with_the_best_so_far_and_its_gap() -> None:
    given = "llama-3.1-70b", "8x8xh100", mw.recipe(global_batch=512, sequence=8192)
    found = mw.plan(*given, time_limit=0.5, gap=1e-4)
    assert found.stopped == "the time limit of 0.5 s"
    assert found.estimate.fits
    assert found.bound <= found.estimate.step_time_s


def test_sizes_need_not_be_powers_of_two() -> None:
    found = mw.plan("qwen2.5-7b", "3x8xa100-80gb", mw.recipe(global_batch=96, sequence=4096), schedule="1f1b")
    assert found.plan.world_size == 24
    assert found.estimate.fits


def test_what_the_runtime_is_asked_for_is_what_it_can_run() -> None:
    precision = {"compute": "fp32", "reduce": "fp32", "master": None}
    recipe = mw.recipe(global_batch=64, sequence=1024, precision=precision)
    found = mw.plan(llama(num_hidden_layers=8, **SIZES), "4xh100", recipe, scope="runtime")
    inputs = Inputs(found.plan, llama(num_hidden_layers=8, **SIZES), mw.cluster("4xh100"), recipe)
    assert [each for each in check_plan(inputs, "runtime") if each.severity == "error"] == []
