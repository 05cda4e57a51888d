"""Documents survive being written and read, and random plans obey the rules."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.document import Document, Record
from meshwright.errors import DocumentError
from meshwright.plan.rules import RULES, Inputs, check_plan
from meshwright.plan.spec import Plan
from tests.plan.rule_cases import PIPELINE, inputs_of
from tests.plan.spoilt import spoilt_plans
from tests.plan.strategies import clusters, models, recipes, valid_plans
from tests.plan.test_rules_roles import LISTENER, MOE, RESNET
from tests.plan.test_rules_runtime import RUNS

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
documents = models() | clusters() | recipes() | valid_plans().map(lambda inputs: inputs.plan)
BASES = st.sampled_from([PIPELINE, RUNS, MOE, LISTENER, RESNET]).map(inputs_of) | valid_plans()


def data_of(document: Document) -> dict[str, Any]:
    """A document as plain data, its version said."""
    return {f"meshwright_{document.noun}": 1} | document.as_data()


@QUICK
@given(documents)
def test_a_document_read_back_from_yaml_is_equal(document: Document) -> None:
    text = document.to_yaml()
    again = type(document).parse(text)
    assert again == document
    assert again.to_yaml() == text
    assert again.fingerprint == document.fingerprint


@QUICK
@given(valid_plans())
def test_a_random_plan_has_a_meaning(inputs: Inputs) -> None:
    assert [problem for problem in check_plan(inputs) if problem.severity == "error"] == []


@QUICK
@given(spoilt_plans(BASES))
def test_no_rule_stumbles_over_a_plan_that_the_schema_reads(inputs: Inputs) -> None:
    for rule in RULES:
        for problem in rule.problems(inputs):
            assert problem.where
            assert problem.message
            assert problem.fix


@QUICK
@given(spoilt_plans(BASES), BASES)
def test_fingerprints_are_equal_just_where_contents_are(one: Inputs, other: Inputs) -> None:
    plans = [one.plan, Plan.parse(one.plan.to_yaml()), other.plan]
    assert all((a == b) == (a.fingerprint == b.fingerprint) for a in plans for b in plans)


def fields(record: Record, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of every field that a document's data says."""
    for name in record.as_data():
        if name in type(record).model_fields:
            yield (*place, name)
            yield from _inside(getattr(record, name), (*place, name))


def _inside(value: Any, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, Record):
        yield from fields(value, place)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _inside(inner, (*place, key))
    elif isinstance(value, tuple):
        for number, inner in enumerate(value):
            yield from _inside(inner, (*place, number))


@QUICK
@given(documents, st.data())
def test_a_key_with_one_letter_too_many_is_named_with_the_right_one(document: Document, data: st.DataObject) -> None:
    known = [place for place in fields(document) if len(str(place[-1])) > 3]
    *steps, key = data.draw(st.sampled_from(known))
    broken = data_of(document)
    inside: Any = broken
    for step in steps:
        inside = inside[step]
    wrong = f"{key}{str(key)[-1]}"
    inside[wrong] = inside.pop(key)
    with pytest.raises(DocumentError, match=f"unknown key '{wrong}'; did you mean '{key}'?"):
        type(document).from_data(broken)
