"""The command line as a user meets it: piped, on a terminal, as JSON, and when something is wrong."""
# ruff: noqa: E501 - messages are quoted whole

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.text import Text

import meshwright as mw
from meshwright.cli.estimate import _EXIT_CODES
from meshwright.plan.spec import Plan
from meshwright.plan.words import Schedule
from meshwright.report.check import Judgement
from meshwright.version import __version__
from tests.test_broken_files import run

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "plans"
COMMAND = (sys.executable, "-m", "meshwright")
BOXES = re.compile("[─━│┃┏┓└┘╭╮╰╯]")
SMALL = ("--model", "gpt2", "--cluster", "cpu:4", "--seq", "256", "--global-batch", "8")


def as_json(*arguments: str, code: int = 0) -> Any:
    """The JSON that a verb prints."""
    got, out, err = run(*arguments, "--json")
    assert (got, err) == (code, "")
    return json.loads(out)


def on_a_terminal(*arguments: str, columns: int = 100, **environment: str) -> tuple[int, str]:
    """Exit code and output of the command line on a pseudo-terminal."""
    parent, child = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color"}
    environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=child, stdout=child, stderr=child, env=environ | size | environment, cwd=ROOT
    )
    os.close(child)
    pieces = []
    while select.select([parent], [], [], 60)[0]:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(parent)
    return process.wait(timeout=60), b"".join(pieces).decode().replace("\r\n", "\n")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A sound plan of GPT-2 on four processes."""
    path = tmp_path / "plan.yaml"
    code, _, err = run("estimate", *SMALL, "--tp", "2", "-o", str(path))
    assert (code, err) == (0, "")
    return path


# What is printed, and where


def test_piped_output_is_plain_aligned_text_of_any_width() -> None:
    done = subprocess.run([*COMMAND, "cluster", "8xh100"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "\x1b" not in done.stdout
    assert not BOXES.search(done.stdout)
    assert max(map(len, done.stdout.splitlines())) > 100
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_a_terminal_gets_tables_in_bold_within_its_width() -> None:
    code, shown = on_a_terminal("model", "gpt2", columns=90)
    assert code == 0
    assert "\x1b[1m" in shown
    assert BOXES.search(shown)
    words = Text.from_ansi(shown).plain
    assert max(map(len, words.splitlines())) <= 90
    assert "124,439,808" in words


def test_no_color_is_honoured_on_a_terminal() -> None:
    code, shown = on_a_terminal("model", "gpt2", NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in shown
    assert "124,439,808" in shown


@pytest.mark.parametrize("verb", [("model", "gpt2"), ("cluster", "cpu:4"), ("estimate", *SMALL), ("doctor",)])
def test_json_is_one_document_and_nothing_else(verb: tuple[str, ...]) -> None:
    assert isinstance(as_json(*verb), dict)


@pytest.mark.parametrize("noun", ["plan", "model", "cluster", "recipe", "calibration"])
def test_schema_prints_the_json_schema_of_each_document(noun: str) -> None:
    code, out, err = run("schema", noun)
    assert (code, err) == (0, "")
    assert f"meshwright_{noun}" in json.loads(out)["required"]
    assert as_json("schema", noun) == json.loads(out)


def test_version_is_the_packages() -> None:
    assert run("--version") == (0, f"meshwright {__version__}\n", "")


def test_help_gives_an_example_for_every_verb() -> None:
    code, out, _ = run("--help")
    assert code == 0
    for verb in re.findall(r"^  (\w+)  +[A-Z]", out.partition("Commands:")[2], flags=re.MULTILINE):
        code, out, err = run(verb, "--help")
        assert (code, err) == (0, "")
        assert f"Example: meshwright {verb}" in out
        assert "\x1b" not in out
        assert not BOXES.search(out)


@pytest.mark.parametrize(
    ("words", "place", "offered"),
    [("meshwright doc", 1, "doctor"), ("meshwright schema cl", 2, "cluster"), ("meshwright model llama-3.1-4", 2, "llama-3.1-405b")],
)  # fmt: skip
def test_the_shell_completes_verbs_nouns_and_models(words: str, place: int, offered: str) -> None:
    asked = {"_MESHWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    command = [Path(sys.executable).with_name("meshwright")]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [offered]


# Verbs


def test_model_says_what_the_authors_say() -> None:
    data = as_json("model", "llama-3.1-405b")
    assert data["parameters"] == 405_853_388_800
    assert data.keys() >= {"name", "family", "parameters", "layers", "hazards", "fingerprint"}
    assert [layer["span"] for layer in data["layers"]] == ["embed", "decoder.0-125", "head"]


def test_seq_changes_the_flops_of_attention_alone() -> None:
    short, long = (as_json("model", "gpt2", "--seq", sequence)["layers"][1]["parts"] for sequence in ("512", "1024"))
    assert short[0]["forward_flops_per_token"] < long[0]["forward_flops_per_token"]
    assert short[1] == long[1]


def test_a_plan_from_options_is_written_and_estimated_alike(plan: Path) -> None:
    direct = as_json("estimate", *SMALL, "--tp", "2")
    assert as_json("estimate", str(plan)) == direct
    assert direct["step_time_s"] > 0
    assert Plan.read(plan).groups["a"].mesh == {"dp": 2, "tp": 2}


def test_a_plan_from_files_names_them_relative_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, outputs = tmp_path / "inputs", tmp_path / "out"
    inputs.mkdir()
    outputs.mkdir()
    (inputs / "model.yaml").write_text(mw.model("gpt2").to_yaml())
    (inputs / "cluster.yaml").write_text(mw.cluster("cpu:4").to_yaml())
    (inputs / "recipe.yaml").write_text(mw.recipe(global_batch=8, sequence=256).to_yaml())
    monkeypatch.chdir(inputs)
    files = ("--model", "model.yaml", "--cluster", "cluster.yaml", "--recipe", "recipe.yaml")
    first = as_json("estimate", *files, "-o", "../out/plan.yaml")
    monkeypatch.chdir(tmp_path)
    assert as_json("estimate", "out/plan.yaml") == first
    assert as_json("check", "out/plan.yaml")["verdict"] == "fits"


def test_check_exits_with_0_where_a_plan_fits(plan: Path) -> None:
    data = as_json("check", str(plan))
    assert data["verdict"] == "fits"
    assert [problem["severity"] for problem in data["problems"]] == ["warning"]  # 50,257 words over tp 2
    assert data["memory"]["fits"] is True
    code, out, _ = run("check", str(plan))
    assert code == 0
    assert out.startswith("fits: ")
    assert "\nwarnings\n" in out


def test_check_exits_with_1_where_a_plan_does_not_fit_and_says_where_when_and_by_how_much(plan: Path) -> None:
    large = plan.with_name("large.yaml")
    run("estimate", "--model", "llama-3-70b", "--cluster", "8xh100", "--seq", "8192", "--global-batch", "8", "--tp", "8", "-o", str(large))  # fmt: skip
    assert as_json("check", str(large), code=1)["verdict"] == "does-not-fit"
    code, out, _ = run("check", str(large))
    assert code == 1
    said = r"does not fit: .* GiB of 79.6 GiB on the fullest device \(stage 0 on group a, at \w+\), .* too many"
    assert re.match(said, out)


def test_check_judges_by_the_calibration_that_is_given(plan: Path) -> None:
    """Whose runtime alone takes more than the device has."""
    assert as_json("check", str(plan), "--calibration", "ideal")["verdict"] == "fits"
    hungry = plan.with_name("hungry.yaml")
    hungry.write_text("meshwright_calibration: 1\nname: hungry\nsource: this test\nothers: {context: [1 TB, 1 TB]}\n")
    data = as_json("check", str(plan), "--calibration", str(hungry), code=1)
    assert data["verdict"] == "does-not-fit"


def test_check_says_that_a_host_is_too_small_and_exits_with_1(plan: Path) -> None:
    """Llama 3.1 405B, all of it offloaded, on one node of 2 TiB."""
    large = plan.with_name("offloaded.yaml")
    run("estimate", "--model", "llama-3.1-405b", "--cluster", "8xh100", "--seq", "4096", "--global-batch", "8", "--zero", "3", "--recompute", "full", "-o", str(large))  # fmt: skip
    everything = "{optimizer: cpu, parameters: cpu, activations: cpu}"
    large.write_text(re.sub(r"(- ?\{?span: .*?)(\}?)$", rf"\1, offload: {everything}\2", large.read_text(), flags=re.M))
    data = as_json("check", str(large), code=1)
    assert (data["verdict"], [host["fits"] for host in data["memory"]["hosts"]]) == ("does-not-fit", [False])
    code, out, _ = run("check", str(large))
    assert code == 1
    assert re.match(
        r"does not fit: .* TiB of 2 TiB on the host of node 0 of pool 'h100' \(stage 0, at \w+\), .* TiB too", out
    )
    assert "memory of one node's host, at its peak" in out


def test_estimate_notes_what_check_warns_of(plan: Path) -> None:
    """All streams of a T5 get the one length."""
    few = ("--model", "t5-small", "--cluster", "1xh100", "--global-batch", "8", "--calibration", "ideal")
    data = as_json("estimate", *few, "--seq", "512", "-o", str(plan))
    warned = [problem for problem in as_json("check", str(plan))["problems"] if problem["severity"] == "warning"]
    assert [problem["rule"] for problem in warned] == ["streams-have-their-own-lengths"]
    assert any("[streams-have-their-own-lengths]" in note for note in data["notes"])
    by_stream = as_json("estimate", *few, "--seq", "source=512,target=128")
    assert not any("[streams" in note for note in by_stream["notes"])
    assert by_stream["step_time_s"] < data["step_time_s"]


def test_check_exits_with_2_where_a_plan_is_bad_and_says_what_would_mend_it(plan: Path) -> None:
    plan.write_text(plan.read_text().replace("tp: 2}", "tp: 4}"))
    data = as_json("check", str(plan), code=2)
    assert data["verdict"] == "bad"
    assert data["memory"] is None
    assert all(problem["message"] and problem["fix"] for problem in data["problems"])
    code, out, err = run("check", str(plan))
    assert (code, err) == (2, "")
    assert out.startswith("bad: ")


def test_check_for_the_runtime_asks_more(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    asked = ("--model", "bloom-560m", "--cluster", "4xh100", "--seq", "256", "--global-batch", "8")
    assert run("estimate", *asked, "-o", str(plan))[0] == 0
    assert as_json("check", str(plan), "--scope", "meaning")["scope"] == "meaning"
    found = as_json("check", str(plan), "--scope", "runtime", code=2)["problems"]
    assert {problem["scope"] for problem in found if problem["severity"] == "error"} == {"runtime"}


def test_check_lists_the_ranks_of_every_process_group(plan: Path) -> None:
    groups = as_json("check", str(plan), "--groups")["groups"]
    tensor = next(group for group in groups if group["purpose"] == "tensor")
    assert tensor == {
        "purpose": "tensor",
        "used_by": ["embed", "decoder.0-11", "head"],
        "size": 2,
        "count": 2,
        "first": "0-1",
        "starts": "0-2:2",
    }
    assert re.search(r"^tensor +2 +2 +0-1 from 0-2:2 +embed decoder.0-11 head$", run("check", str(plan), "--groups")[1], re.MULTILINE)  # fmt: skip


def test_every_verdict_has_an_exit_code_of_its_own_and_only_a_plan_that_fits_passes() -> None:
    assert _EXIT_CODES == {"fits": 0, "does-not-fit": 1, "bad": 2}
    assert set(_EXIT_CODES) == set(get_args(Judgement))


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_memory_is_judged_under_every_schedule(schedule: str, tmp_path: Path) -> None:
    """A plan that nobody judged must not pass in CI."""
    path = str(tmp_path / "plan.yaml")
    virtual = ("--virtual", "2") if schedule == "interleaved" else ()
    run("estimate", *SMALL, "--pp", "2", "--schedule", schedule, *virtual, "-o", path)
    data = as_json("check", path)
    assert (data["verdict"], data["memory"]["fits"]) == ("fits", True)


def test_a_plan_that_does_not_fit_is_told_so_under_any_schedule(tmp_path: Path) -> None:
    text = (GOLDEN / "zbv-gpt-14.6b.yaml").read_text().replace("source: ", f"source: {GOLDEN}/")
    small = mw.cluster("3x8xa100-80gb").to_yaml().replace("memory: 80 GiB", "memory: 8 GiB")
    (tmp_path / "small.yaml").write_text(small)
    (tmp_path / "plan.yaml").write_text(text)
    code, out, _ = run("check", str(tmp_path / "plan.yaml"), "--cluster", str(tmp_path / "small.yaml"))
    assert code == 1
    assert out.startswith("does not fit: ")


def test_diff_exits_with_0_for_equal_plans_and_1_for_different_ones(plan: Path) -> None:
    other = plan.with_name("other.yaml")
    other.write_text(plan.read_text().replace("micro_batches: 4", "micro_batches: 2"))
    assert as_json("diff", str(plan), str(plan)) == []
    changes = as_json("diff", str(plan), str(other), code=1)
    assert changes == [{"where": "micro_batches", "before": "4", "after": "2"}]
    assert run("diff", str(plan), str(other))[1].splitlines()[1].split() == ["micro_batches", "4", "2"]


def test_doctor_says_what_is_here_and_what_the_runtime_runs() -> None:
    data = as_json("doctor")
    assert data["torch"]["backends"]["gloo"] is True
    assert data["runtime"]["ready"] is True
    assert {"dp", "tp", "dp/zero3"} <= set(data["runtime"]["roles"])
    assert data["missing"] == []
    assert "Nothing is missing." in run("doctor")[1]


def test_doctor_runs_without_torch_and_says_how_to_get_it() -> None:
    """In a process in which the packages of the extra `train` are not to be found."""
    hide = (
        "import sys, importlib.metadata as metadata\n"
        "found = metadata.version\n"
        "def version(name):\n"
        "    if name in ('torch', 'transformers'): raise metadata.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "metadata.version = version\n"
        "sys.modules['torch'] = None\n"
        "from meshwright.cli import main\n"
        "main(['doctor'])\n"
    )
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not installed: plans can be made and checked here, not run" in done.stdout
    assert 'torch, transformers, for training: pip install "meshwright[train]"' in done.stdout


# Names of the package


def test_the_functions_stay_functions_whatever_is_imported() -> None:
    """`model`, `cluster` and `recipe` are functions of the package and packages in it."""
    script = (
        "import meshwright as mw, meshwright.model.spec, meshwright.cluster.resolve, meshwright.recipe.spec\n"
        "from meshwright.plan.resolve import read_inputs\n"
        "import meshwright.api\n"
        "for name in mw.__all__: getattr(mw, name)\n"
        "assert all(callable(getattr(mw, name)) for name in ('model', 'cluster', 'recipe', 'check', 'estimate'))\n"
        "assert set(mw.__all__) <= set(dir(mw))\n"
        "from meshwright import *\n"
        "assert callable(model) and callable(recipe)\n"
        "assert mw.model('gpt2').parameters == 124439808\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        getattr(mw, "nonsense")  # noqa: B009


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = (
        "import sys, meshwright; print(sorted({'pydantic', 'yaml', 'typer', 'rich', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
