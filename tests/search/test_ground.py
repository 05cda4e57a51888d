"""Bounds before costing against what the choices take that they are bounds of."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.memory import in_flight as held_during
from meshwright.model.spec import ModelSpec
from meshwright.plan.orders import orders
from meshwright.plan.rules_schedule import rounds_fit
from meshwright.search.answer import simulated
from meshwright.search.bench import Bench
from meshwright.search.choice import Choice, Option
from meshwright.search.costs import StageCosts
from meshwright.search.outline import Kept
from meshwright.search.planner import Search
from meshwright.search.problem import Problem, Wishes
from meshwright.search.solve import Solution, Solver
from meshwright.search.space import Shape, realise, schedules
from meshwright.search.stages import in_flight
from tests.cost.build import llama

EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 8192, "num_hidden_layers": 4}
MOST_SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 704, "mlp_only_layers": [0]}
UNLIKE = SIZES | MOST_SPARSE | {"model_type": "qwen3_moe", "num_hidden_layers": 5}
CASES = {
    "a first layer of its own": (llama(**UNLIKE), "2x2xh100", None),
    "dense": (llama(**SIZES), "2x2xh100", None),
    "small memory": (llama(**SIZES), "2x2xh100", 5e9),
    "experts": (llama(**SIZES | EXPERTS), "2x2xh100", None),
}


def solved(search: Search) -> Iterator[tuple[Shape, Choice, Kept, float]]:
    """Every choice under 1f1b or without a pipeline, under every state, with what it takes at least."""
    for shape in search.work.ground.shapes[::4]:
        choice = realise(search.problem, shape)
        if choice is None or not search.work.is_sound(shape, choice):
            continue
        every: list[StageCosts] = [*search.work.costs.whole(shape, choice), *search.work.costs.inside(shape, choice)]
        for costs in every:
            solution = Solver(costs, choice).solve(float("inf"))
            if solution is not None:
                inside = costs.bench.choice.pieces != choice.pieces
                yield shape, choice, Kept(costs.state, inside), solution.bound


@pytest.mark.parametrize("name", CASES)
def test_no_choice_takes_less_than_its_bounds(name: str) -> None:
    model, cluster, limit = CASES[name]
    assert isinstance(model, ModelSpec)
    recipe = mw.recipe(global_batch=16, sequence=1024)
    search = Search(Problem(model, mw.cluster(cluster), recipe, Wishes(memory_limit=limit, schedule="1f1b")))
    search.start()
    bounds = dict(zip(search.work.ground.shapes, search.work.ground.bounds().tolist(), strict=True))
    seen, closest = 0, 0.0
    for shape, choice, kept, seconds in solved(search):
        ground, place = search.work.ground, search.work.ground.states.index(kept)
        under = ground.under(shape, choice.schedule)[place]
        assert max(bounds[shape], ground.closer(shape), under) <= seconds * (1 + 1e-9), (shape, kept)
        assert ground.possible(shape, choice.schedule, 1, seconds * (1 + 1e-9))[place], (shape, kept)
        seen, closest = seen + 1, max(closest, under / seconds)
    assert seen > 20
    assert closest > 0.75  # layers this small wait for the host, which starts exchanges too: no bound counts that


TURNS: dict[str, tuple[ModelSpec, Wishes]] = {
    "interleaved": (llama(**SIZES), Wishes(schedule="interleaved", forbid=("cp", "ulysses"), micro_batch=1)),
    "interleaved in little memory": (
        llama(**SIZES),
        Wishes(schedule="interleaved", forbid=("cp", "ulysses"), micro_batch=1, memory_limit=4.5e9),
    ),
    "a first layer of its own": (
        llama(**UNLIKE),
        Wishes(schedule="interleaved", forbid=("cp", "ulysses"), micro_batch=1, tp=1, memory_limit=4.5e9),
    ),
    "zbv": (llama(**SIZES), Wishes(schedule="zbv", forbid=("cp", "ulysses"), micro_batch=1)),
}


@pytest.mark.parametrize("name", TURNS)
def test_no_plan_whose_groups_have_several_stages_takes_less_than_its_bounds(name: str) -> None:
    """Every such plan, replicas of nodes that shard (HSDP) included."""
    recipe, cluster = mw.recipe(global_batch=16, sequence=1024), mw.cluster("4x2xh100")
    model, wishes = TURNS[name]
    search = Search(Problem(model, cluster, recipe, wishes))
    search.start()
    ground, seen, replicas, closest = search.work.ground, 0, 0, 0.0
    for shape in (shape for shape in ground.shapes if shape.pp > 1):
        for schedule, virtual in schedules(search.problem, shape):
            choice = realise(search.problem, shape, schedule, virtual)
            assert choice is not None
            for costs in (*search.work.costs.whole(shape, choice), *search.work.costs.inside(shape, choice)):
                solution = Solver(costs, choice).solve(float("inf"))
                inside = costs.bench.choice.pieces != choice.pieces
                own = replace(choice, pieces=costs.bench.choice.pieces)
                found = solution and simulated(search.problem, own, solution, search.work.reached)
                if solution is None or found is None:
                    continue
                step, kept = found.estimate.step_time_s * (1 + 1e-9), Kept(costs.state, inside)
                assert max(solution.bound, ground.choice(shape, schedule, virtual)) <= step, (shape, virtual, kept)
                place = ground.states.index(kept)
                assert ground.under(shape, schedule)[place] <= step
                if found.fits:
                    assert ground.possible(shape, schedule, virtual, step)[place], (shape, virtual, kept)
                    [holds] = ground.holds(shape, schedule, virtual, [place], [costs.pace(ground.main)], below=step)
                    assert holds, (shape, virtual, kept)
                seen, replicas = seen + 1, replicas + inside
                closest = max(closest, solution.bound / found.estimate.step_time_s)
    assert seen > 10
    assert replicas > 0
    assert closest > 0.9


@pytest.mark.parametrize("limit", [7e9, 9e9])
def test_no_group_of_several_stages_is_refused_that_fits(limit: float) -> None:
    """Logits as large as these are those of one micro-batch, however many a group has in flight."""
    wishes = Wishes(schedule="interleaved", forbid=("cp", "ulysses"), micro_batch=1, memory_limit=limit)
    model = llama(**SIZES | {"vocab_size": 131072, "num_hidden_layers": 8})
    search = Search(Problem(model, mw.cluster("4x2xh100"), mw.recipe(global_batch=16, sequence=1024), wishes))
    search.start()
    fitting = refused = 0
    for shape in (shape for shape in search.work.ground.shapes if shape.pp > 1):
        for schedule, virtual in schedules(search.problem, shape):
            choice = realise(search.problem, shape, schedule, virtual)
            assert choice is not None
            for costs in search.work.costs.whole(shape, choice):
                solver, least = Solver(costs, choice), [costs.bench.recomputes(layer)[0] for layer in model.layers]
                options = tuple(Option(costs.state, recompute) for recompute in least)
                found = simulated(search.problem, choice, Solution(0.0, solver.even, options), search.work.reached)
                if solver.solve(float("inf")) is not None:
                    fitting += 1
                elif found is not None:
                    assert not found.fits, (shape, virtual, costs.state)
                    refused += 1
    assert fitting > 10
    assert refused > 2


def test_what_groups_hold_is_what_their_orders_hold() -> None:
    for groups, virtual, count in itertools.product((2, 3, 4), (2, 3), (3, 4, 8, 12)):
        if rounds_fit(count, groups):
            every = orders("interleaved", tuple(range(groups)) * virtual, count)
            held = [held_during(order, np.ones(len(order))).max() / virtual for order in every]
            assert in_flight("interleaved", groups, virtual, count).tolist() == held


@pytest.mark.parametrize("cluster", ["2x2xh100", "2x3xh100"])
def test_a_bench_costs_alike_whatever_it_takes_from_others(cluster: str) -> None:
    search = Search(Problem(llama(**SIZES), mw.cluster(cluster), mw.recipe(global_batch=12, sequence=1024)))
    search.start()
    for shape in search.work.ground.shapes[::4]:
        choice = realise(search.problem, shape)
        if choice is None or not search.work.is_sound(shape, choice):
            continue
        shared, alone = search.work.ground.benches.of(shape, choice), Bench(search.problem, choice)
        for layer in {id(layer.stack): layer for layer in search.problem.model.layers}.values():
            for state, recompute in itertools.product((None, "zero2"), alone.recomputes(layer)):
                option = Option(state, recompute)
                one, other = (np.hstack(each.seconds(layer, option)) for each in (shared, alone))
                assert one == pytest.approx(other, rel=1e-12)
                assert shared.bytes(layer, option) == alone.bytes(layer, option)
