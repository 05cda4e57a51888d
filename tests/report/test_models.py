"""The list of known models."""

from meshwright.model.resolve import catalog_names
from meshwright.report.models import models_blocks, models_data
from meshwright.report.plain import plain_text


def test_every_known_model_is_listed_once() -> None:
    assert sorted(row["name"] for row in models_data()) == sorted(catalog_names())


def test_words_are_searched_in_names_and_families() -> None:
    assert [row["name"] for row in models_data("gpt2 xl")] == ["gpt2-xl"]
    assert {row["family"] for row in models_data("LLAMA 70b")} == {"llama"}


def test_models_of_one_line_stand_together_by_size() -> None:
    sizes = [row["parameters"] for row in models_data("llama-3.1")]
    assert sizes == sorted(sizes)
    names = [row["name"] for row in models_data()]
    places = [place for place, name in enumerate(names) if name.startswith("qwen")]
    assert len(places) > 4
    assert places == list(range(places[0], places[-1] + 1))


def test_nothing_found_is_said() -> None:
    assert "no known model has 'nothing of it'" in plain_text(models_blocks("nothing of it"))
