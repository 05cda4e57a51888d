"""Layers under unlike splits and states against brute force: every plan of small spaces, made apart from the search."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cost.estimate import Estimate, estimate_placement
from meshwright.cost.placement import Placement
from meshwright.errors import PlanError
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.spec import ClusterRef, Group, ModelRef, Plan, RecipeRef, Role, Row, Stage
from meshwright.search.answer import fits_within
from meshwright.search.planner import Search
from meshwright.search.problem import Problem, Wishes
from meshwright.search.space import divisors
from tests.cost.build import llama

SIZES = {"hidden_size": 1024, "intermediate_size": 2816}
FORBIDDEN = ("cp", "ulysses", "hsdp")


def rows(layer: str, tp: int, dp: int, states: Sequence[str | None], recomputes: Sequence[str]) -> list[Row]:
    """What a layer may take on a mesh of dp x tp: tensor ranks, or samples over both axes."""
    found = []
    for turned in (False, True) if tp > 1 else (False,):
        for state in states if dp > 1 or turned else (None,):
            roles = {"dp": Role("dp", state)} if dp > 1 or tp == 1 else {}
            roles |= {"tp": Role("dp", state) if turned else Role("tp+sp")} if tp > 1 else {}
            words = recomputes if layer.startswith("decoder") else ("none",)
            found += [Row(span=layer, roles=roles, recompute=word) for word in words]
    return found


def plans(problem: Problem, recomputes: Sequence[str]) -> Iterator[Plan]:
    model, cluster, recipe, wishes = problem.model, problem.cluster, problem.recipe, problem.wishes
    names = [layer.name for layer in model.layers]
    for pp in divisors(cluster.size):
        for tp in divisors(cluster.size // pp):
            dp = cluster.size // pp // tp
            for count in divisors(recipe.global_batch // dp) if recipe.global_batch % dp == 0 else []:
                for inner in combinations(range(2, len(names) - 1), pp - 1):
                    cuts = list(pairwise((0, *inner, len(names))))
                    for taken in product(*(rows(name, tp, dp, wishes.states, recomputes) for name in names)):
                        yield plan_of(problem, tp, dp, count, [taken[first:after] for first, after in cuts])


def plan_of(problem: Problem, tp: int, dp: int, count: int, stages: Sequence[Sequence[Row]]) -> Plan:
    model, cluster, recipe = problem.model, problem.cluster, problem.recipe
    mesh = ({"dp": dp} if dp > 1 or tp == 1 else {}) | ({"tp": tp} if tp > 1 else {})
    size = tp * dp
    return Plan(
        model=ModelRef(name=model.name, fingerprint=model.fingerprint),
        cluster=ClusterRef(name=cluster.name, fingerprint=cluster.fingerprint),
        recipe=RecipeRef(global_batch=recipe.global_batch, sequence=recipe.sequence, fingerprint=recipe.fingerprint),
        micro_batches=count,
        schedule="1f1b",
        groups={
            f"g{place}": Group(devices=tuple(range(place * size, (place + 1) * size)), mesh=mesh)
            for place in range(len(stages))
        },
        stages=tuple(Stage(on=f"g{place}", layers=tuple(each)) for place, each in enumerate(stages)),
    )


def estimated(problem: Problem, plan: Plan) -> Estimate | None:
    inputs = Inputs(plan, problem.model, problem.cluster, problem.recipe)
    if any(each.severity == "error" for each in check_plan(inputs)):
        return None
    found = estimate_placement(Placement(inputs))
    return found if fits_within(found, problem.wishes.memory_limit) else None


def unlike(plan: Plan) -> bool:
    """Whether layers of one stage have several splits or states."""
    return any(len({tuple(row.roles.items()) for row in stage.layers}) > 1 for stage in plan.stages)


def asked(cluster: str, batch: int, vocabulary: int, **wishes: Any) -> Problem:
    model = llama(num_hidden_layers=2, vocab_size=vocabulary, **SIZES)
    asks = Wishes(gap=0.0, schedule="1f1b", time_limit=600.0, **wishes)
    return Problem(model, mw.cluster(cluster), mw.recipe(global_batch=batch, sequence=1024), asks)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    place=st.sampled_from([("2xh100", 4), ("2xa10g", 4), ("3xh100", 6), ("2x1xa100-40gb", 4)]),
    vocabulary=st.sampled_from([8192, 65536]),
    share=st.sampled_from([None, 0.7, 0.9]),
    forbid=st.sampled_from([("zero1", "zero2"), ("zero2", "zero3"), ("zero1", "zero3", "pp")]),
    word=st.sampled_from(["none", "full"]),
)
def test_unlike_layers_have_the_best_of_all_plans(
    place: tuple[str, int], vocabulary: int, share: float | None, forbid: tuple[str, ...], word: str
) -> None:
    """Memory limits are a share of what the fastest plan without a limit needs."""
    (cluster, batch), wishes = place, {"forbid": (*FORBIDDEN, *forbid), "recompute": word}
    free = asked(cluster, batch, vocabulary, **wishes)
    every = [found for plan in plans(free, (word,)) if (found := estimated(free, plan)) is not None]
    fastest = min(every, key=lambda each: each.step_time_s)
    limit = None if share is None else share * max(each.asked.high for each in fastest.memory)
    inside = [found.step_time_s for found in every if fits_within(found, limit)]
    try:
        answer = Search(asked(cluster, batch, vocabulary, **wishes, memory_limit=limit)).run()
    except PlanError:
        assert not inside
        return
    assert answer.estimate.step_time_s == pytest.approx(min(inside), rel=1e-9)
    assert answer.bound <= min(inside) * (1 + 1e-9)


def test_unlike_layers_are_faster_where_memory_is_short() -> None:
    """A large vocabulary on two devices: the embedding is sharded and the layers are not."""
    forbid = (*FORBIDDEN, "zero1", "zero2")
    like, found = (
        Search(asked("2xh100", 4, 65536, forbid=each, recompute="none")).run() for each in ((*forbid, "unlike"), forbid)
    )
    assert unlike(found.plan)
    assert not unlike(like.plan)
    assert found.estimate.step_time_s < 0.99 * like.estimate.step_time_s
