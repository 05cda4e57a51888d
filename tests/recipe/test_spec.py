"""What a recipe says of lengths and of the optimizer's state."""

import pytest

from meshwright.recipe.spec import BYTES, Optimizer, Recipe


def test_a_length_is_the_models_where_it_fixes_one_and_else_the_recipes() -> None:
    one, several = Recipe(global_batch=1, sequence=8), Recipe(global_batch=1, sequence={"tokens": 8})
    assert [each.length("tokens") for each in (one, several)] == [8, 8]
    assert [each.length("tokens", fixed=5) for each in (one, several)] == [5, 5]
    assert [each.length("audio") for each in (one, several)] == [8, None]


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [
        ({"name": "adamw"}, 2),
        ({"name": "lion"}, 1),
        ({"name": "muon"}, 1),
        ({"name": "adafactor"}, 0),
        ({"name": "sgd"}, 0),
        ({"name": "sgd", "momentum": 0.9}, 1),
    ],
)
def test_an_optimizer_keeps_so_many_tensors_of_a_parameters_size(optimizer: dict[str, object], moments: int) -> None:
    assert Optimizer.model_validate(optimizer).moments == moments


def test_a_narrower_dtype_has_fewer_bytes() -> None:
    """Of a number as it is stored: tf32 lies in 32 bits."""
    assert [BYTES[name] for name in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")] == [8, 4, 4, 2, 2, 1, 0.5]
