"""What a recipe says of lengths and of the optimizer's state."""

from typing import Any

import pytest

from meshwright.recipe.spec import BYTES, Kept, Optimizer, Recipe


def test_a_length_is_the_models_where_it_fixes_one_and_else_the_recipes() -> None:
    one, several = Recipe(global_batch=1, sequence=8), Recipe(global_batch=1, sequence={"tokens": 8})
    assert [each.length("tokens") for each in (one, several)] == [8, 8]
    assert [each.length("tokens", fixed=5) for each in (one, several)] == [5, 5]
    assert [each.length("audio") for each in (one, several)] == [8, None]


ALIKE = {"sgd": Kept(), "sgd momentum": Kept(1), "lion": Kept(1), "adamw": Kept(2)}


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("kind", ["matrix", "table", "vector"])
def test_most_optimizers_keep_tensors_of_a_parameters_size(name: str, kind: Any) -> None:
    asked, momentum = name.partition(" ")[::2]
    assert Optimizer.model_validate({"name": asked, "momentum": 0.9 if momentum else 0}).kept(kind) == ALIKE[name]


def test_adafactor_keeps_means_of_what_has_rows_and_columns() -> None:
    kept = Optimizer(name="adafactor").kept
    assert (kept("matrix"), kept("table"), kept("vector")) == (Kept(means=True), Kept(means=True), Kept(1))


def test_muon_keeps_a_momentum_of_hidden_matrices_and_adams_moments_of_the_rest() -> None:
    kept = Optimizer(name="muon").kept
    assert (kept("matrix"), kept("table"), kept("vector")) == (Kept(1), Kept(2), Kept(2))


def test_plain_descent_alone_keeps_nothing() -> None:
    names = ["adamw", "sgd", "lion", "adafactor", "muon"]
    assert [name for name in names if Optimizer.model_validate({"name": name}).keeps_nothing] == ["sgd"]
    assert not Optimizer(name="sgd", momentum=0.9).keeps_nothing


def test_a_narrower_dtype_has_fewer_bytes() -> None:
    """Of a number as it is stored: tf32 lies in 32 bits."""
    assert [BYTES[name] for name in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")] == [8, 4, 4, 2, 2, 1, 0.5]
