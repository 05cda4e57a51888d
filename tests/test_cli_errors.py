"""The command line where something is wrong: one message, the right exit code, and no traceback but for our own faults."""
# ruff: noqa: E501 - messages are quoted whole

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import meshwright as mw
from tests.broken import PLAN, RECIPE
from tests.test_broken_files import run
from tests.test_cli import COMMAND, ROOT, SMALL


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("model", "lama-3-8b"), "no model is called 'lama-3-8b', and no file or folder is there; did you mean 'llama-3-8b'?"),
        (("cluster", "8xh10"), "'h10' is no device that is known; did you mean 'h100'?"),
        (("cluster", "h100"), "'h100' is no cluster; write '8xh100', '4x8xa100-80gb:ib200' (nodes x devices x kind : link), 'cpu:4' or 'local'"),
        (("cluster", "no/such.yaml"), "cannot read no/such.yaml: No such file or directory"),
        (("check", "no/such.yaml"), "cannot read no/such.yaml: No such file or directory"),
        (("model", "gpt2", "--seq", "0"), "--seq: must be from 1 to 1,000,000,000,000,000 (got 0)"),
        (("estimate", "--model", "gpt2", "--cluster", "cpu:4", "--seq", "5k", "--global-batch", "8"), "--seq: write a number, or one for each stream like 'source=512,target=128' (got '5k')"),
        (("estimate", "--model", "gpt2", "--cluster", "cpu:4", "--seq", "tokens=8,tokens=9", "--global-batch", "8"), "--seq: write a number, or one for each stream like 'source=512,target=128' (got 'tokens=8,tokens=9')"),
        (("estimate",), "without a plan file, --model, --cluster, --seq, --global-batch must be given; see meshwright estimate --help"),
        (("estimate", *SMALL[:-1], "0"), "the options: global_batch: must be greater than 0 (got 0)"),
        (("estimate", *SMALL, "-o", "/no/such/folder/plan.yaml"), "cannot write /no/such/folder/plan.yaml: No such file or directory"),
        (("estimate", "x.yaml", "--tp", "2"), "--tp: for uniform plans, and x.yaml is a plan already; leave one of them out"),
    ],
)  # fmt: skip
def test_an_error_is_one_message_on_standard_error_with_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    assert run(*arguments) == (2, "", f"{said}\n")
    assert run(*arguments, "--json") == (2, "", f"{said}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("model",), "Missing argument"),
        (("model", "gpt2", "--nonsense"), "No such option"),
        (("schema", "nonsense"), "'nonsense' is not one of"),
        (("check", "x.yaml", "--scope", "nonsense"), "'nonsense' is not one of"),
        (("model", "gpt2", "--seq", "many"), "--seq"),
    ],
)
def test_what_cannot_be_typed_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_options_that_say_a_thing_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    recipe = ("--recipe", str(tmp_path / "recipe.yaml"))
    code, _, err = run("estimate", "--model", "gpt2", "--cluster", "cpu:4", *recipe, "--seq", "64")
    assert code == 2
    assert "--seq: the recipe" in err


def test_an_error_in_a_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN.replace("1f1b", "1f2b"))
    assert run("check", str(file))[2].startswith(f"{file}:7: schedule: must be ")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(import_module("meshwright.model.resolve"), "resolve_model", fail)
    with pytest.raises(ZeroDivisionError, match="ours"):
        run("model", "gpt2")


@pytest.mark.parametrize("reads", [0, 1])
def test_a_reader_that_leaves_early_is_no_error(reads: int) -> None:
    read, write = os.pipe()
    process = subprocess.Popen([*COMMAND, "schema", "plan"], stdout=write, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(write)
    if reads:
        os.read(read, 1)
    os.close(read)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "cluster", "cpu:4"], stdout=full, stderr=subprocess.PIPE, check=False, cwd=ROOT
        )
    assert (done.returncode, done.stderr) == (2, b"cannot write the output: No space left on device\n")


def test_a_closed_output_is_one_message() -> None:
    shell = f"{sys.executable} -m meshwright cluster cpu:4 >&-"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (2, "cannot write the output: standard output is closed\n")


def test_an_output_that_knows_no_such_letters_gets_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(mw.model("gpt2").to_yaml().replace("name: gpt2", "name: модель"))
    command = [*COMMAND, "model", str(tmp_path / "model.yaml")]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, cwd=ROOT)
    assert done.stdout.startswith(b"\\u043c")


def test_ctrl_c_ends_quietly_with_130(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.yaml")  # reading it waits for a writer
    process = subprocess.Popen(
        [*COMMAND, "check", str(tmp_path / "plan.yaml")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    descriptor = os.open(tmp_path / "plan.yaml", os.O_WRONLY)  # waits until the reader is there
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    os.close(descriptor)
    assert (process.returncode, out, err) == (130, b"", b"")
