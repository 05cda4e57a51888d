"""Broken plans, what a rule says of them, and how they are mended: what the tables of `test_rules_*` are made of."""

import json
from dataclasses import dataclass
from typing import Any

from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import RULES, Inputs, Problem
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe
from tests.plan.models import data_of, llama

ROLES = {"dp": "dp/zero1", "tp": "tp"}
DELETE = object()
"""The value of an edit that removes the field."""

Edits = dict[str, Any]
"""Path of a field in plan, model, cluster or recipe → its new value."""

PIPELINE: dict[str, Any] = {
    "model": data_of(llama()),
    "cluster": parse_cluster("8xh100").as_data() | {"meshwright_cluster": 1},
    "recipe": {"meshwright_recipe": 1, "global_batch": 16, "sequence": 32},
    "plan": {
        "meshwright_plan": 1,
        "model": {"name": "tiny"},
        "cluster": {"name": "8xh100"},
        "recipe": {"global_batch": 16, "sequence": 32},
        "micro_batches": 4,
        "schedule": "1f1b",
        "groups": {
            "a": {"devices": "0-3", "mesh": {"dp": 2, "tp": 2}},
            "b": {"devices": "4-7", "mesh": {"dp": 2, "tp": 2}},
        },
        "stages": [
            {"on": "a", "layers": [{"span": "embed", "roles": ROLES}, {"span": "decoder.0-1", "roles": ROLES}]},
            {"on": "b", "layers": [{"span": "decoder.2-3", "roles": ROLES}, {"span": "head", "roles": ROLES}]},
        ],
    },
}
"""A plan without faults: four layers on two stages of four devices."""


def edited(data: dict[str, Any], edits: Edits) -> dict[str, Any]:
    """A copy of the data with its edits."""
    data = _copy(data)
    for path, value in edits.items():
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("/"))
        place: Any = data
        for step in steps:
            place = place[step]
        if value is DELETE:
            del place[last]
        elif isinstance(place, list) and last == len(place):
            place.append(_copy(value))
        else:
            place[last] = _copy(value)
    return data


def _copy(data: Any) -> Any:
    """A copy in which nothing stands in two places."""
    return json.loads(json.dumps(data))


def inputs_of(data: dict[str, Any]) -> Inputs:
    """The four documents from their data."""
    return Inputs(
        Plan.from_data(data["plan"]),
        ModelSpec.from_data(data["model"]),
        Cluster.from_data(data["cluster"]),
        Recipe.from_data(data["recipe"]),
    )


@dataclass(frozen=True)
class Case:
    """A plan that breaks one rule, and the same plan mended as the rule's fix says."""

    rule: str
    broken: Edits
    where: str
    message: str
    fix: str
    mended: Edits
    base: dict[str, Any] | None = None
    """The data that `broken` edits, where it is not the table's own."""

    def __str__(self) -> str:
        return self.rule


def said_by(data: dict[str, Any]) -> list[Problem]:
    """What every rule of every scope has to say, one after the other."""
    inputs = inputs_of(data)
    return [problem for rule in RULES for problem in rule.problems(inputs)]


def hold(case: Case, base: dict[str, Any] = PIPELINE) -> None:
    """What each row of the tables is tested for: the exact words, and silence once the plan is mended."""
    base = case.base or base
    [rule] = [rule for rule in RULES if rule.name == case.rule]
    broken = edited(base, case.broken)
    expected = Problem(rule.name, rule.scope, rule.severity, case.where, case.message, case.fix)
    assert list(rule.problems(inputs_of(base))) == []
    assert list(rule.problems(inputs_of(broken))) == [expected]
    assert list(rule.problems(inputs_of(edited(broken, case.mended)))) == []
