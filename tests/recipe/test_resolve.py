"""A recipe from whatever says it; and fields that take the place of those in a file."""

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import DocumentError
from meshwright.recipe.resolve import resolve_recipe
from meshwright.recipe.spec import Recipe

FILE = """\
meshwright_recipe: 1
global_batch: 64
sequence: 512
precision: {compute: fp32, master: null}
clip_norm: 2.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(FILE)
    return path


def test_a_recipe_comes_from_a_file_its_fields_or_itself(file: Path) -> None:
    read = resolve_recipe(file)
    fields = {
        "global_batch": 64,
        "sequence": 512,
        "precision": {"compute": "fp32", "master": None},
        "clip_norm": 2.0,
    }
    assert read == resolve_recipe(str(file)) == resolve_recipe(fields) == resolve_recipe(**fields)
    assert resolve_recipe(read) is read


@pytest.mark.parametrize("kind", ["file", "recipe", "dictionary"])
def test_fields_take_the_place_of_what_was_said_before(file: Path, kind: str) -> None:
    before = {"file": file, "recipe": Recipe.read(file), "dictionary": {"global_batch": 64, "sequence": 512}}[kind]
    changed = mw.recipe(before, global_batch=8, clip_norm=None)
    assert (changed.global_batch, changed.sequence, changed.clip_norm) == (8, 512, None)


def test_a_field_takes_the_place_of_the_whole_field(file: Path) -> None:
    assert mw.recipe(file, precision={"compute": "fp64"}).precision.master == "fp32"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"global_bach": 8}, "recipe: unknown key 'global_bach'; did you mean 'global_batch'?"),
        ({"global_batch": 0}, "recipe: global_batch: must be greater than 0 (got 0)"),
        ({"precision": {"compute": "fp31"}}, "recipe: precision.compute: must be 'fp64', 'fp32', 'fp16' or 'bf16'"),
    ],
)
def test_fields_beside_a_file_are_read_as_strictly_as_the_file(
    file: Path, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(DocumentError) as refused:
        mw.recipe(file, **fields)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(("what", "kind"), [(8, "int"), (["a"], "list"), (object(), "object")])
def test_what_is_no_recipe_is_refused_by_its_kind(what: object, kind: str) -> None:
    with pytest.raises(DocumentError, match=f"a {kind} is no recipe: give a file, a Recipe or its fields"):
        resolve_recipe(what)  # type: ignore[arg-type]


def test_nothing_at_all_misses_what_every_recipe_has() -> None:
    with pytest.raises(DocumentError, match="recipe: global_batch: required key is missing"):
        resolve_recipe()
