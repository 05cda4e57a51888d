"""A plan in a line."""

from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.spec import Save
from meshwright.recipe.spec import Recipe
from meshwright.validation.described import describe_plan

RECIPE = Recipe(global_batch=64, sequence=512)


def test_it_says_roles_stages_micro_batches_and_recompute() -> None:
    plan = uniform_plan("gpt2", "2x8xh100", RECIPE, tp=4, pp=2, zero=1, micro_batch=4, sp=True, recompute="full")
    said = "dp/zero1 2, tp+sp 4 on each of 2 stages, 1f1b, 8 micro-batches, recompute full, hf-sdpa"
    assert describe_plan(plan) == said


def test_one_device_and_a_list_of_what_is_saved() -> None:
    plan = uniform_plan("gpt2", "1xh100", RECIPE, micro_batch=64, recompute=Save(save=("matmul", "attention")))
    assert describe_plan(plan) == "one device, 1 micro-batch, recompute all but matmul+attention, hf-sdpa"
