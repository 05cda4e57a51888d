"""Documents: read from YAML 1.2, written back equal, with errors that name the field; and their JSON Schemas."""
# ruff: noqa: E501 - messages are quoted whole

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.document import Document, read_text, write_text
from meshwright.errors import DocumentError
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe
from meshwright.yaml12 import dump, load
from tests.broken import CLUSTER, MODEL, PLAN, RECIPE, leaves, with_value

DOCUMENTS: dict[str, tuple[type[Document], str]] = {
    "plan": (Plan, PLAN),
    "model": (ModelSpec, MODEL),
    "cluster": (Cluster, CLUSTER),
    "recipe": (Recipe, RECIPE),
}
PLANS = sorted((Path(__file__).parent / "plans").glob("*.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("1e9", 1e9),
        (".5", 0.5),
        ("2.", 2.0),
        ("1_000", "1_000"),
        ("007", 7),
        ("~", None),
        ("null", None),
        ("True", True),
        ("2026-11-30", "2026-11-30"),
        (".nan", ".nan"),
        ("<<", "<<"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    data, _ = load(f"key: {text}")
    assert data == {"key": value}
    assert type(data["key"]) is type(value)


@pytest.mark.parametrize(
    "value", ["on", "yes", "1e9", "true", "null", "~", "1", "1.5", "a: b", "- a", "", "ü", "a\nb", "#"]
)
def test_text_that_looks_like_something_else_stays_text(value: str) -> None:
    assert load(dump({"key": value}))[0] == {"key": value}


@pytest.mark.parametrize("noun", DOCUMENTS)
def test_a_document_is_written_as_it_is_read(noun: str) -> None:
    kind, text = DOCUMENTS[noun]
    document = kind.parse(text)
    again = kind.parse(document.to_yaml())
    assert again == document
    assert again.fingerprint == document.fingerprint
    assert again.to_yaml() == document.to_yaml()


def test_a_fingerprint_covers_defaults_and_every_field() -> None:
    first = Recipe(global_batch=8, sequence=64)
    assert first.fingerprint == Recipe(global_batch=8, sequence=64, seed=0).fingerprint
    assert first.fingerprint != Recipe(global_batch=8, sequence=64, seed=1).fingerprint


@pytest.mark.parametrize("name", ["source", "date", "price_source"])
def test_a_fingerprint_sees_what_a_user_called_by_a_word_of_provenance(name: str) -> None:
    one, other = (
        Cluster.parse(CLUSTER.replace("outside", name).replace("400 Gbit", rate)) for rate in ("400 Gbit", "200 Gbit")
    )
    assert one.fingerprint != other.fingerprint
    one, other = (ModelSpec.parse(MODEL.replace("audio", name).replace("100", length)) for length in ("100", "50"))
    assert one.fingerprint != other.fingerprint


def test_a_fingerprint_does_not_see_where_facts_come_from() -> None:
    assert Cluster.parse(CLUSTER).fingerprint == Cluster.parse(CLUSTER.replace("a data sheet", "hearsay")).fingerprint
    named = MODEL.replace("name: tiny", "name: small\nsource: hearsay")
    assert ModelSpec.parse(MODEL).fingerprint == ModelSpec.parse(named).fingerprint


def test_a_byte_order_mark_is_no_part_of_a_document(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE, encoding="utf-8-sig")
    assert Recipe.read(tmp_path / "r.yaml") == Recipe.parse(RECIPE)


MESSAGES = [
    ("plan", "schedule: 1f1b", "schedule: 1f1c", "f:7: schedule: must be 'gpipe', '1f1b', 'interleaved', 'zb-h1', 'zbv' or 'dualpipev'; did you mean '1f1b'? (got '1f1c')"),
    ("plan", "micro_batches", "microbatches", "f:6: unknown key 'microbatches'; did you mean 'micro_batches'?"),
    ("plan", "on: a", "on: c", "f:12: stages.0.on: no group is called 'c'; known: a, b"),
    ("plan", "x: dp/zero3", "x: dp/zero9", "f:14: stages.0.layers.0.roles.x: 'zero9' is no state; did you mean 'zero3'?"),
    ("plan", "{x: 2, y: 2}", "{x: 0, y: 2}", "f:9: groups.a.mesh.x: must be greater than 0 (got 0)"),
    ("plan", "{x: 2, y: 2}", "{X: 2, y: 2}", "f:9: groups.a.mesh.X: must be lower-case letters, digits and _, with a letter first (got 'X')"),
    ("plan", "devices: 0-3", "devices: 3-0", "f:9: groups.a.devices: '3-0' is empty; write the smaller device first"),
    ("plan", "{tokens: 64}", "[64]", "f:5: recipe.sequence: must be a whole number or a mapping (got a list)"),
    ("plan", "{tokens: 64}", "0", "f:5: recipe.sequence: must be greater than 0 (got 0)"),
    ("plan", "model: {name: gpt2}", "model: {}", "f:3: model.name: required key is missing"),
    ("plan", "recompute: full", "recompute: ful", "f:15: stages.0.layers.1.recompute: must be 'none', 'full' or 'selective'; did you mean 'full'? (got 'ful')"),
    ("plan", "[matmul, attention]", "[matmul, 5]", "f:19: stages.1.layers.0.recompute.save.1: must be 'matmul', 'half-matmul', 'qkv', 'attention' or 'collective' (got 5)"),
    ("plan", "meshwright_plan: 1", "meshwright_plan: 2", "f:1: meshwright_plan: this Meshwright reads version 1 (got 2)"),
    ("plan", "meshwright_plan: 1\n", "", "f: this is no plan: the key 'meshwright_plan: 1' is missing"),
    ("plan", "meshwright_plan: 1", "meshwright_model: 1", "f: this is no plan: the key 'meshwright_plan: 1' is missing (it says 'meshwright_model')"),
    ("model", "op: norm", "op: nrom", "f:18: stacks.1.parts.0.operators.0: no 'op' is 'nrom'; did you mean 'norm'?"),
    ("model", "op: norm, kind", "kind", "f:18: stacks.1.parts.0.operators.0: required key is missing: 'op'"),
    ("model", "bias: true", "bias: yes", "f:18: stacks.1.parts.0.operators.0.bias: must be true or false (got 'yes')"),
    ("model", "reads: [embed]", "reads: [embedding]", "f:9: stacks.1: layer 'decoder.0-3' reads 'embedding', which is no layer before it"),
    ("model", "stream: audio", "stream: video", "f:13: stacks.1.stream: 'video' is not named in streams; known: audio, tokens"),
    ("cluster", "device: big", "device: bigg", "f:11: pools.0.device: no device is called 'bigg'; did you mean 'big'?"),
    ("cluster", "80 GB", "80 GX", "f:4: devices.big.memory: '80 GX': unit 'GX' is not known here; write for example '80 GiB'"),
    ("cluster", "across: [{between: [one, two], link: outside, cards: 1}]", "", "f:9: pools: 'one' and 'two' have no link between them: add one to 'across'"),
    ("recipe", "clip_norm: 1.0", "clip_norm: true", "f:6: clip_norm: must be a number (got true)"),
    ("recipe", "global_batch: 64", "global_batch: 64.5", "f:2: global_batch: must be a whole number (got 64.5)"),
]  # fmt: skip


@pytest.mark.parametrize(("noun", "before", "after", "said"), MESSAGES)
def test_an_error_names_file_line_field_and_what_works(noun: str, before: str, after: str, said: str) -> None:
    kind, text = DOCUMENTS[noun]
    assert before in text
    with pytest.raises(DocumentError) as refused:
        kind.parse(text.replace(before, after, 1), "f")
    assert str(refused.value) == said


def test_an_error_that_only_follows_from_another_is_not_said() -> None:
    """pydantic calls a list empty whose only entry is wrong; that is not what the reader needs to hear."""
    with pytest.raises(DocumentError) as refused:
        ModelSpec.parse("meshwright_model: 1\nname: x\nfamily: y\nstacks: [{span: 5}]\n", "f")
    assert "at least 1" not in str(refused.value)
    assert "f:4: stacks.0.span: must be text (got 5)" in str(refused.value)


def test_more_than_five_errors_are_counted() -> None:
    with pytest.raises(DocumentError) as refused:
        Plan.parse("meshwright_plan: 1\n", "f")
    assert len(str(refused.value).splitlines()) == 6
    assert str(refused.value).endswith("f: ... and 1 more")


def _calls(wrong: int) -> int:
    """Python calls, generators' steps among them, that it takes to explain so many wrong entries."""
    count = 0

    def tick(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    devices = [[]] * wrong
    data = {"meshwright_plan": 1, "groups": {"a": {"devices": devices, "mesh": {"x": 1}}}, "stages": []}
    sys.setprofile(tick)
    try:
        with pytest.raises(DocumentError, match=f"and {wrong} more$"):  # besides 4 that are missing, and 1 empty
            Plan.from_data(data, "f")
    finally:
        sys.setprofile(None)
    return count


def test_explaining_twice_as_many_errors_takes_twice_the_work() -> None:
    Plan.from_data(load(PLAN)[0])  # builds the classes
    assert _calls(800) < 2.5 * _calls(400)


@pytest.mark.parametrize("noun", DOCUMENTS)
def test_the_json_schema_accepts_what_we_read(noun: str) -> None:
    kind, text = DOCUMENTS[noun]
    schema = kind.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    data, _ = load(text)
    validator.validate(data)
    validator.validate(load(kind.parse(text).to_yaml())[0])


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_the_json_schema_accepts_the_golden_plans(plan: Path) -> None:
    jsonschema.validate(load(read_text(plan))[0], Plan.json_schema())


@pytest.mark.parametrize("name", ["llama-3.1-405b", "gpt2"])
def test_the_json_schema_accepts_the_models_of_the_catalogue(name: str) -> None:
    jsonschema.validate(load(resolve_model(name).to_yaml())[0], ModelSpec.json_schema())


@pytest.mark.parametrize("spec", ["8xh100", "2x8xa100-80gb+4x8xv100", "cpu:4/2"])
def test_the_json_schema_accepts_clusters_in_short(spec: str) -> None:
    jsonschema.validate(load(resolve_cluster(spec).to_yaml())[0], Cluster.json_schema())


@pytest.mark.parametrize("noun", DOCUMENTS)
def test_the_json_schema_refuses_what_we_refuse(noun: str) -> None:
    """An unknown key, a version of the future, and a list in the place of each field; not all that rules refuse."""
    kind, text = DOCUMENTS[noun]
    validator = jsonschema.Draft202012Validator(kind.json_schema())
    data, _ = load(text)
    assert not validator.is_valid(data | {"unheard_of": 1})
    assert not validator.is_valid(data | {f"meshwright_{noun}": 2})
    assert not validator.is_valid({key: value for key, value in data.items() if not key.startswith("meshwright_")})
    for place in leaves(data):
        changed = with_value(data, place, [[]])
        if place[-1] != "source":
            assert not validator.is_valid(changed), place


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("groups", "a", "devices"), "0-3*4+8"),
        (("groups", "a", "devices"), 5),
        (("groups", "a", "devices"), "0, 2, 4-6:2"),
        (("stages", 0, "layers", 0, "span"), "decoder.7"),
        (("stages", 0, "layers", 0, "roles", "x"), "ulysses/zero2"),
        (("recipe", "sequence"), 4096),
    ],
)
def test_the_json_schema_knows_our_notations(place: tuple[str | int, ...], value: Any) -> None:
    data, _ = load(PLAN)
    assert jsonschema.Draft202012Validator(Plan.json_schema()).is_valid(with_value(data, place, value))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("groups", "a", "devices"), "0..3"),
        (("stages", 0, "layers", 0, "span"), "Decoder"),
        (("stages", 0, "layers", 0, "roles", "x"), "dpp"),
        (("stages", 0, "layers", 0, "roles", "x"), "tp/zero1"),
    ],
)
def test_the_json_schema_refuses_false_notations(place: tuple[str | int, ...], value: Any) -> None:
    data, _ = load(PLAN)
    assert not jsonschema.Draft202012Validator(Plan.json_schema()).is_valid(with_value(data, place, value))


def test_a_schema_is_plain_json() -> None:
    for kind, _ in DOCUMENTS.values():
        assert json.loads(json.dumps(kind.json_schema(), allow_nan=False)) == kind.json_schema()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    Plan.parse(PLAN).write(target)
    assert Plan.read(target) == Plan.parse(PLAN)
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("old")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    write_text(tmp_path / "link.yaml", "new")
    assert (tmp_path / "link.yaml").is_symlink()
    assert (tmp_path / "real.yaml").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_text("/dev/null", "text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["", ".", "..", "no/such/folder/plan.yaml", "x" * 300, "\0"])
def test_a_path_that_cannot_be_written_is_one_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DocumentError, match="cannot write"):
        write_text(name, "text")
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(DocumentError, match="larger than 4 MiB"):
        read_text("/dev/zero")
