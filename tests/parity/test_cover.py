"""Covering arrays, and the one that is kept: every pair that rules allow stands in a row, and no row is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.plan.proven import TABLE, proven_pairs
from meshwright.plan.rules_families import FAMILIES
from meshwright.plan.rules_runtime import PROVEN, PROVEN_SPLITS, PROVEN_STATES
from meshwright.plan.spec import parse_role
from tests.parity.array import FACTORS, Row, refusal
from tests.parity.cover import all_pairs, covering_array, pairs_of
from tests.parity.known import table_of
from tests.parity.run import ARRAY, rows

KEPT = json.loads(ARRAY.read_text())
ROWS = [Row(*row) for row in KEPT["rows"]]


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_every_pair_stands_in_a_row_where_nothing_is_refused(sizes: list[int], seed: int) -> None:
    factors = [[str(value) for value in range(size)] for size in sizes]
    rows, refused = covering_array(factors, lambda row: None, seed)
    assert not refused
    assert {pair for row in rows for pair in pairs_of(row)} == {*all_pairs(factors)}


@given(seed=st.integers(0, 99))
def test_what_is_refused_alone_is_missing(seed: int) -> None:
    factors = [["a", "b"], ["a", "b", "c"], ["a", "b"]]
    rows, refused = covering_array(factors, lambda row: "alike" if row[0] == row[1] else None, seed)
    assert refused == {(0, "a", 1, "a"): "alike", (0, "b", 1, "b"): "alike"}
    assert all(row[0] != row[1] for row in rows)


def test_the_array_has_every_pair_that_is_not_refused() -> None:
    refused = {tuple(each[:4]) for each in KEPT["refused"]}
    found = {pair for row in ROWS for pair in pairs_of(row)}
    assert len(ROWS) >= 400
    assert not found & refused
    assert found | refused == {*all_pairs(list(FACTORS.values()))}


def test_what_the_rules_call_proven_stands_in_the_array() -> None:
    roles = {parse_role(role) for row in ROWS for role in (row.first, row.second)}
    assert {role.split for role in roles} == {*PROVEN_SPLITS}
    assert {role.state for role in roles} == {None, *PROVEN_STATES}
    assert {other.value for _, other in proven_pairs() if other.factor == "family"} >= {*FAMILIES}
    assert {row.schedule for row in ROWS} >= {*PROVEN["plan.schedule"]}


@pytest.mark.parametrize("number", range(0, len(ROWS), 23))
def test_no_row_is_refused(number: int) -> None:
    assert refusal(ROWS[number]) is None


def test_the_table_of_the_runtime_has_what_cases_have() -> None:
    assert json.loads(TABLE.read_text()) == table_of(rows())
