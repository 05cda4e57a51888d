"""Layers are cut into stages evenly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.stage_cut import cut_layers, even_counts
from tests.plan.models import llama


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [
        (8, 4, [2, 2, 2, 2]),
        (7, 4, [2, 2, 2, 1]),
        (5, 4, [1, 2, 1, 1]),
        (61, 16, [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3]),
    ],
)
def test_a_remainder_goes_to_the_stages_in_the_middle(layers: int, stages: int, counts: list[int]) -> None:
    assert even_counts(layers, stages) == counts


@given(st.integers(1, 200), st.integers(1, 40))
def test_no_stage_has_more_than_one_layer_more_than_another_and_the_last_has_fewest(layers: int, stages: int) -> None:
    counts = even_counts(layers, stages)
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == min(counts)


@given(st.integers(1, 12), st.data())
def test_every_layer_is_in_one_stage_in_the_models_order(layers: int, data: st.DataObject) -> None:
    model = llama(layers=layers)
    cut = cut_layers(model, data.draw(st.integers(1, layers)))
    assert [layer for stage in cut for layer in stage] == list(model.layers)
    assert all(cut)
