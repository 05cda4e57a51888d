"""What each row of a plan holds of its model."""

import pytest

from meshwright.plan.sites import Site, find_sites, shared_indices
from tests.plan.models import data_of, llama, mixture
from tests.plan.rule_cases import PIPELINE, ROLES, edited, inputs_of


def experts(span: str) -> dict[str, object]:
    return {"span": span, "part": "experts", "roles": ROLES}


def sites_with(*rows: dict[str, object]) -> tuple[Site, ...]:
    """The sites of the second stage, decoder.2-3 and head, with these rows besides."""
    whole = [{"span": "decoder.2-3", "roles": ROLES}, {"span": "head", "roles": ROLES}]
    edits = {"model": data_of(mixture(llama())), "plan/stages/1/layers": [*whole, *rows]}
    plan, model, *_ = inputs_of(edited(PIPELINE, edits))
    return tuple(site for site in find_sites(plan, model) if site.stage == 1)


def parts(site: Site) -> list[str]:
    return [part.name for held in site.held for part in held.parts]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("decoder.0-3", "decoder.2-9", range(2, 4)),
        ("decoder.7", "decoder.0-9", range(7, 8)),
        ("decoder.0-1", "decoder.2-3", range(0)),
        ("decoder.0-1", "encoder.0-1", range(0)),
        ("embed", "embed", range(1)),
        ("embed", "head", range(0)),
        ("decoder", "decoder.0", range(0)),
    ],
)
def test_spans_share_the_layers_that_both_name(one: str, other: str, shared: range) -> None:
    assert list(shared_indices(one, other)) == list(shared)
    assert list(shared_indices(other, one)) == list(shared)


def test_a_row_holds_all_parts_of_its_layers() -> None:
    assert [parts(site) for site in sites_with()] == [["attention", "experts"], ["head"]]


def test_a_part_with_a_row_for_every_layer_is_that_rows_alone() -> None:
    whole, _, apart = sites_with(experts("decoder.2-3"))
    assert (parts(whole), parts(apart)) == (["attention"], ["experts"])
    one, _, *rows = sites_with(experts("decoder.2"), experts("decoder.3"))
    assert (parts(one), [parts(row) for row in rows]) == (["attention"], [["experts"], ["experts"]])


def test_a_part_with_a_row_for_some_layers_stays_with_the_others() -> None:
    whole, _, apart = sites_with(experts("decoder.3"))
    assert (parts(whole), parts(apart)) == (["attention", "experts"], ["experts"])


def test_layers_that_the_model_lacks_are_left_out() -> None:
    *_, apart = sites_with(experts("decoder.3-9"))
    assert apart.names == ("decoder.3",)


def test_a_row_may_hold_layers_of_several_stacks() -> None:
    edits = {"model": data_of(mixture(llama()))}
    plan, model, *_ = inputs_of(edited(PIPELINE, edits))
    held = find_sites(plan, model)[1].held
    assert [each.stack.span for each in held] == ["decoder.0", "decoder.1-3"]


def test_a_row_splits_as_many_ways_as_its_axes_have_places() -> None:
    site = sites_with()[0]
    assert (site.ways("dp"), site.ways("tp", "tp+sp"), site.ways("dp", "tp"), site.ways("cp")) == (2, 2, 4, 1)
