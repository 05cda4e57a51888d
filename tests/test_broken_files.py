"""Whatever a file holds, it is read or refused in one clear message; the command line then exits with 2."""

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.cli import main
from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.cost.estimate import estimate_plan
from meshwright.document import Document
from meshwright.errors import DocumentError, MeshwrightError
from meshwright.model.hf_config import from_config
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe
from meshwright.report.check import check_blocks, check_data, judge
from meshwright.report.estimate import estimate_blocks, estimate_data
from meshwright.report.plain import plain_text
from meshwright.yaml12 import load
from tests.broken import BROKEN_TEXTS, CLUSTER, CONFIG, JUNK, MODEL, PLAN, RECIPE, leaves, with_value, without

DOCUMENTS: dict[str, tuple[type[Document], str]] = {
    "plan": (Plan, PLAN),
    "model": (ModelSpec, MODEL),
    "cluster": (Cluster, CLUSTER),
    "recipe": (Recipe, RECIPE),
}
VERBS = {
    "plan": [["check", "FILE"], ["check", "FILE", "--groups"], ["estimate", "FILE"], ["diff", "FILE", "FILE"]],
    "model": [["model", "FILE"], ["model", "FILE", "--json"]],
    "cluster": [["cluster", "FILE"], ["cluster", "FILE", "--json"]],
}
FEW = (1, 1.5, 0, True, None, "x", [], {})
THOROUGH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def run(*arguments: str) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue(), err.getvalue()


def check_message(message: str, source: str) -> None:
    """One to six lines, each of which says where; short, and nothing that a terminal would obey."""
    lines = message.splitlines()
    assert 1 <= len(lines) <= 6
    for line in lines:
        assert source in line, line
        assert line.isprintable(), line
        assert len(line) < 700, line
        assert "validation error" not in line, line


def read(reader: Callable[[], Any], source: str) -> Any:
    """What the reader gives, or nothing where it refuses properly."""
    try:
        return reader()
    except DocumentError as error:
        check_message(str(error), source)
        return None


@pytest.mark.parametrize("noun", DOCUMENTS)
def test_the_sample_documents_are_sound(noun: str) -> None:
    kind, text = DOCUMENTS[noun]
    document = kind.parse(text)
    assert kind.parse(document.to_yaml()) == document


@pytest.mark.parametrize("what", BROKEN_TEXTS)
@pytest.mark.parametrize("noun", DOCUMENTS)
def test_a_file_that_is_no_document_is_refused(noun: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(BROKEN_TEXTS[what])
    kind, _ = DOCUMENTS[noun]
    start = time.perf_counter()
    try:
        document = kind.read(file)
    except DocumentError as error:
        check_message(str(error), "broken.yaml")
    else:
        assert (noun, what) == ("recipe", "another kind")
        assert document == Recipe(global_batch=1, sequence=1)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("noun", DOCUMENTS)
def test_every_field_refuses_what_it_does_not_expect(noun: str) -> None:
    kind, text = DOCUMENTS[noun]
    data, _ = load(text)
    for place in leaves(data):
        broken = [with_value(data, place, junk) for junk in JUNK]
        found = [read(lambda each=each: kind.from_data(each, "here"), "here") for each in broken]
        accepted = [document for document in found if document is not None]
        for document in accepted[:2]:
            assert kind.parse(document.to_yaml()) == document, place
        assert all(len(document.fingerprint) == 16 for document in accepted)


@pytest.mark.parametrize("noun", DOCUMENTS)
def test_every_field_may_be_left_out_or_is_asked_for(noun: str) -> None:
    kind, text = DOCUMENTS[noun]
    data, _ = load(text)
    for place in leaves(data):
        read(lambda place=place: kind.from_data(without(data, place), "here"), "here")


@pytest.mark.parametrize("noun", DOCUMENTS)
def test_an_unknown_key_is_refused_at_every_place(noun: str) -> None:
    kind, text = DOCUMENTS[noun]
    data, _ = load(text)
    for place in leaves(data):
        if place[-1] not in ("sequence", "mesh", "roles", "streams", "devices", "links", "peak", "groups"):
            broken = with_value(data, (*place, "unheard_of"), 1) if isinstance(_at(data, place), dict) else None
            if broken is not None and place[-2:-1] not in (("groups",), ("streams",)):
                with pytest.raises(DocumentError, match="unheard_of"):
                    kind.from_data(broken, "here")


def _at(data: Any, place: tuple[str | int, ...]) -> Any:
    for step in place:
        data = data[step]
    return data


def test_every_field_of_a_configuration_refuses_what_it_does_not_expect() -> None:
    for family in (CONFIG, {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 256}):
        assert from_config(family).parameters > 0
        for field in family:
            read(lambda family=family, field=field: from_config(without(family, (field,)), source="here"), "here")
            for junk in (*JUNK, "\ud800"):
                broken = with_value(family, (field,), junk)
                model = read(lambda broken=broken: from_config(broken, source="here"), "here")
                assert model is None or ModelSpec.parse(model.to_yaml()) == model


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "5", "null", "NaN", '{"a": 1', "[" * 100_000, "9" * 5000, '{"model_type": []}']
)
def test_a_configuration_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DocumentError, match=r"config\.json"):
        resolve_model(tmp_path)


def odd(kind: type[Document], text: str, numbers: tuple[Any, ...] = JUNK) -> Iterator[Any]:
    """Every document that can be read although one field of it is odd."""
    data, _ = load(text)
    for place in leaves(data):
        for junk in numbers:
            with contextlib.suppress(DocumentError):
                yield kind.from_data(with_value(data, place, junk))


def odd_inputs(noun: str) -> Iterator[Inputs]:
    """A sound plan with what it is for, one field of which is odd."""
    plan, model, cluster = Plan.parse(PLAN), resolve_model("gpt2"), resolve_cluster("cpu:8")
    recipe = Recipe(global_batch=16, sequence=64)
    if noun == "plan":
        for each in odd(Plan, PLAN):
            own = Recipe(global_batch=each.recipe.global_batch, sequence=each.recipe.sequence)
            yield Inputs(each, model, cluster, own)
    elif noun == "model":
        yield from (Inputs(plan, each, cluster, recipe) for each in odd(ModelSpec, model.to_yaml(), (1, 7, 10**15)))
    elif noun == "cluster":
        yield from (Inputs(plan, model, each, recipe) for each in odd(Cluster, cluster.to_yaml(), FEW))
    else:
        lora = "{lora: {rank: 8, alpha: 16.0, targets: [c_attn]}}"
        text = (
            f"meshwright_recipe: 1\nglobal_batch: 16\nsequence: 64\ntrainable: {lora}\nloss: {{chunks: 2}}\nseed: 1\n"
        )
        yield from (Inputs(plan, model, cluster, each) for each in odd(Recipe, text, FEW))


@pytest.mark.parametrize("noun", ["plan", "model", "cluster", "recipe"])
def test_what_can_be_read_can_be_checked_and_estimated(noun: str) -> None:
    """One odd field: the rules and the estimate say something of it, in numbers that JSON has, and soon."""
    outcomes = []
    for inputs in odd_inputs(noun):
        start = time.perf_counter()
        verdict = judge(inputs, "meaning")
        json.dumps(check_data(verdict, groups=True), allow_nan=False)
        plain_text(check_blocks(verdict, groups=True))
        if verdict.judgement in ("fits", "does-not-fit"):
            found = estimate_plan(inputs)
            json.dumps(estimate_data(inputs, found), allow_nan=False)
            plain_text(estimate_blocks(inputs, found))
        outcomes.append(verdict.judgement)
        assert time.perf_counter() - start < 20, (noun, outcomes[-1])
    assert {"fits", "bad"} <= set(outcomes)


@pytest.mark.parametrize(
    ("noun", "before", "after", "said"),
    [
        ("plan", "0-3,", "0-99999999999,", "devices are numbered from 0 to 1048575"),
        ("plan", "decoder.6-11", "decoder.0-999999", "layers are numbered from 0 to 9999"),
        ("plan", "micro_batches: 4", "micro_batches: 1000000000", "must be at most 65,536"),
        (
            "plan",
            "x: 2, y: 2}}\n  b",
            "x: 1000000000000000000000000000000, y: 2}}\n  b",
            "must be at most 1,000,000,000,000,000",
        ),
        ("model", "decoder.0-3\n", "decoder.0-999999\n", "layers are numbered from 0 to 9999"),
        (
            "cluster",
            "size: 8,",
            "size: 1000000000000,",
            "more devices in all than can be planned for, which is 1,048,576",
        ),
        ("cluster", "80 GB", "1e40 GB", "must be at most"),
        ("recipe", "global_batch: 64", "global_batch: 1000000000000000000", "must be at most 1,000,000,000,000,000"),
    ],
)
def test_a_size_without_sense_is_refused_at_once_with_its_limit(noun: str, before: str, after: str, said: str) -> None:
    kind, text = DOCUMENTS[noun]
    assert before in text
    start = time.perf_counter()
    with pytest.raises(DocumentError, match=said):
        kind.parse(text.replace(before, after, 1))
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    "spec", ["1000000x1000000xh100", "9999999x9999999xh100", "+".join(["8xh100"] * 5000), "0xh100", "cpu:0"]
)
def test_a_shorthand_without_sense_is_refused_at_once(spec: str) -> None:
    start = time.perf_counter()
    with pytest.raises(MeshwrightError):
        resolve_cluster(spec)
    assert time.perf_counter() - start < 2


@THOROUGH
@given(text=st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_or_refused(text: str) -> None:
    for kind, _ in DOCUMENTS.values():
        assert read(lambda kind=kind: kind.parse(text, "here"), "here") is None


@st.composite
def mangled(draw: st.DrawFn, text: str) -> str:
    """A real document with a few pieces cut out, doubled, moved or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        piece = text[start:end]
        other = draw(
            st.sampled_from(
                ["", piece * 2, piece[::-1], "\n", "  ", "- ", "{", "]", ": ", "&a ", "*a", "!!x ", "'", "~", "9" * 50]
            )
        )
        text = text[:start] + other + text[end:]
    return text


@pytest.mark.parametrize("noun", DOCUMENTS)
@THOROUGH
@given(choice=st.data())
def test_a_mangled_document_is_read_or_refused(noun: str, choice: st.DataObject) -> None:
    kind, text = DOCUMENTS[noun]
    broken = choice.draw(mangled(text))
    document = read(lambda: kind.parse(broken, "here"), "here")
    assert document is None or kind.parse(document.to_yaml()) == document


@pytest.mark.parametrize("noun", VERBS)
@THOROUGH
@given(choice=st.data())
def test_a_verb_answers_every_file_with_an_exit_code_and_one_message(
    noun: str, choice: st.DataObject, tmp_path: Path
) -> None:
    file = tmp_path / "broken.yaml"
    text = choice.draw(
        mangled(DOCUMENTS[noun][1]).map(str.encode)
        | st.binary(max_size=100)
        | st.sampled_from(list(BROKEN_TEXTS.values()))
    )
    file.write_bytes(text)
    verb = choice.draw(st.sampled_from(VERBS[noun]))
    code, out, err = run(*(str(file) if word == "FILE" else word for word in verb))
    assert code in (0, 1, 2)
    assert "Traceback" not in out + err
    assert out or err
    if err:
        assert code == 2
        assert not out


@pytest.mark.parametrize("verb", [["check"], ["estimate"], ["model"], ["cluster"], ["diff", "also-not-there.yaml"]])
@pytest.mark.parametrize("what", ["not there", "a folder", "no name", "a long name"])
def test_a_path_that_leads_nowhere_is_one_message(verb: list[str], what: str, tmp_path: Path) -> None:
    paths = {"not there": tmp_path / "x.yaml", "a folder": tmp_path, "no name": "", "a long name": "x" * 5000 + ".yaml"}
    code, out, err = run(*verb, str(paths[what]))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_a_configuration_with_every_odd_value_is_no_traceback(tmp_path: Path) -> None:
    for field in ("num_hidden_layers", "hidden_size", "_name_or_path", "model_type"):
        for junk in (10**6, 10**30, "\ud800", -1, [], None):
            (tmp_path / "config.json").write_text(json.dumps(CONFIG | {field: junk}))
            code, _, err = run("model", str(tmp_path))
            assert code in (0, 2)
            assert (code == 2) == bool(err)
