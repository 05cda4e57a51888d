"""Plans that somebody ran, published or needs: they read, write, check, and list the groups that are documented."""

from collections import Counter
from functools import cache

import pytest

from meshwright.model.spans import span_names
from meshwright.plan.groups import GroupSet
from meshwright.plan.rules import check_plan
from meshwright.plan.spec import Group, Plan
from tests.plans import golden
from tests.plans.layouts import Expected, Lists
from tests.plans.oracles import ORACLES

each_plan = pytest.mark.parametrize("name", golden.NAMES)
inputs = cache(golden.inputs)


@cache
def groups(name: str) -> tuple[GroupSet, ...]:
    return golden.groups(inputs(name).plan, inputs(name).model)


def by_layer(sets: tuple[GroupSet, ...]) -> Expected:
    """(layer, purpose) → lists of ranks."""
    found: Expected = {}
    for purpose, spans, ranks in sets:
        for layer in (layer for span in spans for layer in span_names(span)):
            found[layer, purpose] = found.get((layer, purpose), frozenset()) | frozenset(ranks)
    return found


def differences(found: Expected, expected: Expected) -> list[str]:
    """Where two accounts of the groups part: layer, purpose, and one list that only one of them has."""
    none: Lists = frozenset()
    return [
        f"{purpose} of {layer}: {min(found.get(key, none) ^ expected.get(key, none))}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key, none) != expected.get(key, none)
        for layer, purpose in [key]
    ]


def test_every_plan_has_an_oracle_and_a_list_of_groups() -> None:
    kept = {path.stem for path in (golden.HERE / "groups").glob("*.yaml")}
    assert set(golden.NAMES) == set(ORACLES) == kept


def test_the_readme_names_every_plan() -> None:
    text = (golden.HERE / "README.md").read_text(encoding="utf-8")
    assert [name for name in golden.NAMES if f"`{name}`" not in text] == []


@each_plan
def test_a_plan_survives_writing_and_reading(name: str) -> None:
    plan = inputs(name).plan
    assert Plan.parse(plan.to_yaml()) == plan


@each_plan
def test_a_plan_has_a_meaning(name: str) -> None:
    assert [str(problem) for problem in check_plan(inputs(name), "meaning")] == []


@each_plan
def test_a_plan_says_whose_it_is_by_the_names_of_its_files(name: str) -> None:
    plan, model, cluster, recipe = inputs(name)
    assert (plan.model.name, plan.cluster.name) == (model.name, cluster.name)
    assert (plan.recipe.global_batch, plan.recipe.sequence) == (recipe.global_batch, recipe.sequence)


@each_plan
def test_every_device_of_the_cluster_has_work(name: str) -> None:
    devices = [rank for group in inputs(name).plan.groups.values() for rank in group.devices]
    assert sorted(devices) == list(range(inputs(name).cluster.size))


@each_plan
def test_the_groups_are_the_ones_that_were_kept(name: str) -> None:
    assert groups(name) == golden.kept(name)


@each_plan
def test_the_groups_are_the_ones_that_the_source_documents(name: str) -> None:
    assert differences(by_layer(groups(name)), ORACLES[name]()) == []


@each_plan
def test_no_rank_is_twice_in_the_groups_of_one_set(name: str) -> None:
    for purpose, spans, ranks in groups(name):
        most = Counter(rank for group in ranks for rank in group).most_common(1)[0]
        assert most[1] == 1, f"{purpose} of {spans}: rank {most[0]}"


# What is wrong → the plan, the group, and what stands in its place.
FAULTS = {
    "a swapped mesh order": ("bloom-176b", "p3", {"devices": "96-127", "mesh": {"model": 4, "data": 8}}),
    "context and data parallelism exchanged": (
        "llama-3.1-405b-128k",
        "p5",
        {"devices": "640-767*8+2048", "mesh": {"dp": 16, "cp": 8, "tp": 8}},
    ),
    "a stage of neighbours, not of every 2,048th": (
        "llama-3.1-405b-128k",
        "p0",
        {"devices": "0-1023", "mesh": {"dp": 8, "cp": 16, "tp": 8}},
    ),
    "experts over the outer axes": (
        "mixtral-8x22b-expert-tp",
        "p7",
        {"devices": "112-127", "mesh": {"middle": 4, "outer": 2, "inner": 2}},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_oracle_notices(fault: str) -> None:
    name, on, spoilt = FAULTS[fault]
    plan, model = inputs(name).plan, inputs(name).model
    faulty = plan.model_copy(update={"groups": plan.groups | {on: Group.model_validate(spoilt)}})
    assert differences(by_layer(golden.groups(faulty, model)), ORACLES[name]())
