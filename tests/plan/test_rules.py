"""What holds for all rules together."""

import time
from collections import Counter

from meshwright.cluster.shorthand import parse_cluster
from meshwright.model.resolve import from_catalog
from meshwright.plan.rules import RULES, Inputs, check_plan
from meshwright.plan.shorthand import uniform_plan
from meshwright.recipe.spec import Recipe
from tests.plan import (
    test_rules_families,
    test_rules_groups,
    test_rules_inputs,
    test_rules_layers,
    test_rules_roles,
    test_rules_runtime,
    test_rules_schedule,
    test_rules_sizes,
    test_rules_targets,
)
from tests.plan.rule_cases import PIPELINE, ROLES, edited, inputs_of

TABLES = (
    test_rules_families,
    test_rules_groups,
    test_rules_inputs,
    test_rules_layers,
    test_rules_roles,
    test_rules_runtime,
    test_rules_schedule,
    test_rules_sizes,
    test_rules_targets,
)


def test_every_rule_has_a_row_that_breaks_it() -> None:
    assert {case.rule for table in TABLES for case in table.CASES} == {rule.name for rule in RULES}


def test_no_two_rules_have_one_name() -> None:
    assert [name for name, count in Counter(rule.name for rule in RULES).items() if count > 1] == []


def test_the_plan_that_the_cases_break_has_no_faults() -> None:
    assert check_plan(inputs_of(PIPELINE)) == []


def test_what_is_wrong_with_many_rows_is_said_once() -> None:
    rows = [{"span": f"decoder.{number}", "roles": ROLES | {"tp": "cp/zero3"}} for number in (2, 3)]
    problems = check_plan(
        inputs_of(edited(PIPELINE, {"plan/stages/1/layers": [*rows, {"span": "head", "roles": ROLES}]}))
    )
    assert [(problem.rule, problem.where) for problem in problems] == [
        ("one-state-a-row", "stages.1.layers.0 (decoder.2) and 1 more")
    ]


def test_a_problem_reads_as_where_what_mend_and_rule() -> None:
    [problem] = check_plan(inputs_of(edited(PIPELINE, {"recipe/micro_batches": 8})))
    said = "micro_batches: the recipe fixes 8 micro-batches, and the plan has 4; write 8 [micro-batches-agree]"
    assert str(problem) == said


def test_the_runtime_is_not_asked_about_a_plan_without_meaning() -> None:
    problems = check_plan(inputs_of(edited(PIPELINE, {"plan/micro_batches": 5})), "runtime")
    assert {problem.scope for problem in problems} == {"meaning"}


def test_a_plan_of_16384_devices_is_checked_in_20_milliseconds() -> None:
    model, cluster = from_catalog("llama-3.1-405b"), parse_cluster("2048x8xh100")
    recipe = Recipe(global_batch=128, sequence=131072)
    plan = uniform_plan(model, cluster, recipe, tp=8, cp=16, pp=16, zero=1, sp=True, recompute="full")

    def check() -> float:
        inputs = Inputs(plan, model, cluster, recipe)
        start = time.thread_time()
        assert check_plan(inputs) == []
        return time.thread_time() - start

    assert min(check() for _ in range(5)) < 0.02
