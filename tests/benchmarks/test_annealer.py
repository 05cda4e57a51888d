"""The annealer that the search is held against: its plans are plans, and in two seconds it finds no better one."""

import random

import pytest

import meshwright as mw
from plan_vs_annealer import EVERY, GAP, LAYERS, SETTINGS, WIDER, Genome, anneal, model_of, plan_of

SETTING = SETTINGS[-1]
RECIPE = mw.recipe(global_batch=SETTING.batch, sequence=SETTING.sequence)
START = Genome(2, (("dp", 2), ("tp+sp", 2)), 4, (4,), 1, ("zero1",) * (LAYERS + 2), ("full",) * LAYERS)


def test_a_genome_is_the_uniform_plan_that_it_describes() -> None:
    model, cluster = model_of(SETTING), mw.cluster(SETTING.cluster)
    own = mw.estimate(plan_of(START, model, cluster, RECIPE), model=model)
    asked = {"tp": 2, "pp": 2, "zero": 1, "micro_batches": 4, "recompute": "full", "sp": True}
    uniform = mw.uniform_plan(model, cluster, RECIPE, **asked)  # type: ignore[arg-type]
    assert own.step_time_s == pytest.approx(mw.estimate(uniform, model=model).step_time_s, rel=1e-12)
    assert own.memory_peak_bytes == mw.estimate(uniform, model=model).memory_peak_bytes


def test_moves_reach_every_choice() -> None:
    chance, genome, seen = random.Random(0), START, set[object]()
    for _ in range(3000):
        genome = chance.choice(WIDER)(genome, chance)
        seen |= {("pp", genome.pp), ("virtual", genome.virtual), *genome.states, *genome.recomputes}
        assert len(genome.cuts) == genome.pp * genome.virtual - 1
        assert sorted({0, *genome.cuts, LAYERS}) == [0, *genome.cuts, LAYERS]
    assert {("pp", 1), ("pp", 8), ("virtual", 4), None, "zero3", "selective"} <= seen
    counts = {ways: sum(len(axes) == ways for pp, axes in EVERY if pp == 1) for ways in (1, 2, 3)}
    assert counts == {1: 4, 2: 2 * 4**2, 3: 4**3}, "8, 2 x 4 and 4 x 2, 2 x 2 x 2, each axis one of four splits"


def test_in_two_seconds_it_finds_nothing_better_than_the_search() -> None:
    ours = mw.plan(model_of(SETTING), SETTING.cluster, RECIPE, gap=GAP, time_limit=100.0)
    theirs = anneal(SETTING, 2.0, seed=1)
    assert theirs.tried > 20
    assert theirs.seconds >= ours.estimate.step_time_s * (1 - 1e-9)
