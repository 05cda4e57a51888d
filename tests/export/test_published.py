"""Launch settings that others published, taken in, are the plans written by hand from their documentation."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import meshwright as mw
from meshwright.export.taking import Taken, take_in
from meshwright.plan.diff import diff_plans
from meshwright.plan.resolve import read_inputs
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe

HERE = Path(__file__).parent / "published"
GOLDEN = Path(__file__).parents[1] / "plans"


class Case(NamedTuple):
    """A file, the system that it is for, where it ran, the model by name, and the plan by hand."""

    file: str
    system: str
    cluster: str
    model: str
    plan: Path
    recipe: dict[str, Any]
    """What the recipe asks for beside its defaults."""
    more: dict[str, Any] = {}  # noqa: RUF012
    describes: bool = True
    """Whether the file describes its model too."""


CASES = (
    Case(
        "bloom-176b.sh",
        "megatron-deepspeed",
        str(GOLDEN / "clusters/jean-zay-48.yaml"),
        "bloom-176b",
        GOLDEN / "bloom-176b.yaml",
        {"global_batch": 2048, "sequence": 2048, "seed": 42, "optimizer": {"learning_rate": 6e-5}},
    ),
    Case(
        "gpt-neox-20b.yml",
        "neox",
        "12x8xa100-40gb",
        "gpt-neox-20b",
        HERE / "plans/gpt-neox-20b.yaml",
        {
            "global_batch": 1536,
            "sequence": 2048,
            "seed": 1234,
            "precision": {"compute": "fp16", "reduce": "fp16"},
            "optimizer": {"learning_rate": 0.97e-4, "weight_decay": 0.01},
        },
    ),
    Case(
        "gpt-175b.sh",
        "megatron",
        "128x8xa100-80gb",
        "gpt-175b",
        HERE / "plans/gpt-175b.yaml",
        {
            "global_batch": 1536,
            "sequence": 2048,
            "seed": 1234,
            "precision": {"compute": "fp16", "reduce": "fp16"},
            "optimizer": {"learning_rate": 6e-5},
        },
    ),
    Case(
        "gpt-530b.sh",
        "megatron",
        "35x8xa100-80gb",
        "gpt-530b",
        HERE / "plans/gpt-530b.yaml",
        {
            "global_batch": 192,
            "sequence": 2048,
            "seed": 1234,
            "precision": {"compute": "fp16", "reduce": "fp16"},
            "optimizer": {"learning_rate": 1.5e-5, "betas": [0.9, 0.999], "weight_decay": 0.01},
        },
    ),
    Case(
        "llama3-405b.toml",
        "torchtitan",
        "16x8xh100",
        "llama-3.1-405b",
        HERE / "plans/llama3-405b.yaml",
        {
            "global_batch": 32,
            "sequence": 8192,
            "precision": {"matmul": "fp8"},
            "optimizer": {"learning_rate": 8e-5},
        },
    ),
    Case(
        "zero3.json",
        "deepspeed",
        "2x8xv100-32gb",
        "llama-2-7b",
        HERE / "plans/zero3.yaml",
        {
            "global_batch": 128,
            "sequence": 2048,
            "precision": {"compute": "fp16", "reduce": "fp16"},
            "optimizer": {"learning_rate": 3e-5, "betas": [0.8, 0.999], "weight_decay": 3e-7},
        },
        {"sequence": 2048},
        describes=False,
    ),
)


def taken(case: Case, model: str | None = None) -> Taken:
    return take_in(HERE / case.file, case.system, cluster=case.cluster, model=model, **case.more)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_the_plan_equals_the_one_written_by_hand(case: Case) -> None:
    found, by_hand = taken(case, case.model).inputs.plan, Plan.read(case.plan)
    unsaid = ("kernels", "overlap") if case.plan.parent == GOLDEN else ("kernels",)  # golden plans are about ranks
    update = {name: getattr(by_hand.execution, name) for name in unsaid}
    same = found.model_copy(update={"execution": found.execution.model_copy(update=update)})
    assert diff_plans(by_hand, same) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_the_recipe_has_the_published_values(case: Case) -> None:
    assert taken(case, case.model).inputs.recipe == Recipe.from_data({"meshwright_recipe": 1} | case.recipe)


@pytest.mark.parametrize("case", [case for case in CASES if case.describes], ids=lambda case: case.file)
def test_the_model_that_a_file_describes_has_the_parameters_of_the_known_one(case: Case) -> None:
    assert taken(case).inputs.model.parameters == mw.model(case.model).parameters


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_what_says_nothing_of_a_plan_is_listed(case: Case) -> None:
    expected = {
        "bloom-176b.sh": {"--init-method-std", "--save", "--load", "steps_per_print", "--deepspeed"},
        "gpt-neox-20b.yml": {"data-path", "zero_optimization.reduce_bucket_size", "lr-decay-style"},
        "gpt-175b.sh": {"--data-path", "--vocab-file", "--rampup-batch-size"},
        "gpt-530b.sh": {"--loss-scale", "--DDP-impl", "--data-path"},
        "llama3-405b.toml": {"parallelism.enable_async_tensor_parallel", "training.dataset", "float8.filter_fqns"},
        "zero3.json": {"zero_optimization.stage3_max_live_parameters", "fp16.loss_scale"},
    }
    assert expected[case.file] <= set(taken(case, case.model).left)


def test_plans_that_were_taken_in_can_be_checked_and_estimated() -> None:
    case = CASES[3]
    inputs = taken(case, case.model).inputs
    assert (
        mw.check(inputs.plan, scope="megatron", model=inputs.model, cluster=inputs.cluster, recipe=inputs.recipe) == []
    )
    by_hand = read_inputs(case.plan, recipe=inputs.recipe)
    mine, other = (
        mw.estimate(each.plan, model=each.model, cluster=each.cluster, recipe=each.recipe) for each in (inputs, by_hand)
    )
    assert mine.step_time_s == pytest.approx(other.step_time_s)
