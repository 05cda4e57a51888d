"""`meshwright export` and `meshwright import`: what they write, and what they say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.plan.diff import diff_plans
from meshwright.plan.spec import Plan
from tests.export.test_published import CASES, HERE

LLAMA = ["--model", "llama-3.1-8b", "--cluster", "8xh100", "--seq", "8192", "--global-batch", "64"]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recipe = mw.recipe(global_batch=64, sequence=8192)
    mw.uniform_plan("llama-3.1-8b", "8xh100", recipe, tp=2, zero=1, sp=True, recompute="full").write(
        tmp_path / "plan.yaml"
    )
    return tmp_path


def test_a_plan_goes_to_megatron_and_comes_back(folder: Path) -> None:
    said = run(folder, "export", "plan.yaml", "--to", "megatron", "-o", "megatron.args").stdout
    assert "files  megatron.args" in said
    assert "is the given plan" in said
    back = run(folder, "import", "--from", "megatron", "megatron.args", "--cluster", "8xh100", "-o", "back.yaml")
    assert "8.03 B parameters" in back.stdout
    given, read = Plan.read(folder / "plan.yaml"), Plan.read(folder / "back.yaml")
    same = {"model": given.model, "execution": given.execution}
    assert diff_plans(given, read.model_copy(update=same)) == []
    assert mw.estimate(folder / "back.yaml").step_time_s > 0


def test_without_a_file_the_flags_alone_go_to_standard_output(folder: Path) -> None:
    done = run(folder, "export", "plan.yaml", "--to", "megatron")
    assert all(line.startswith("--") for line in done.stdout.splitlines())
    assert "--tensor-model-parallel-size 2" in done.stdout
    assert "torchrun" in done.stderr


def test_what_is_written_instead_is_said_with_what_it_costs(folder: Path) -> None:
    said = run(folder, "export", "plan.yaml", "--to", "accelerate", "-o", "made/").stdout
    assert "Accelerate does not split by 'tp+sp'" in said
    assert "than the given plan, as predicted" in said
    assert {path.name for path in (folder / "made").iterdir()} == {"accelerate.yaml", "trainer.args"}


def test_json_has_all_of_it(folder: Path) -> None:
    data: dict[str, Any] = json.loads(run(folder, "export", "plan.yaml", "--to", "deepspeed", "--json").stdout)
    assert not data["exact"]
    assert json.loads(data["files"]["ds_config.json"])["tensor_parallel"] == {"autotp_size": 2}
    assert isinstance(data["slowdown"], float)


def test_flags_may_stand_on_the_command_line(folder: Path) -> None:
    flags = ["--tensor-model-parallel-size", "4", "--micro-batch-size", "1", "--bf16", "--my-flag", "3"]
    done = run(folder, "import", "--from", "megatron", *flags, *LLAMA, "-o", "here.yaml")
    assert "--my-flag" in done.stdout
    assert Plan.read(folder / "here.yaml").groups["a"].mesh == {"dp": 2, "tp": 4}


def test_a_published_launch_line_becomes_files_that_check_reads(tmp_path: Path) -> None:
    case = CASES[1]
    source = str(HERE / case.file)
    said = run(tmp_path, "import", "--from", case.system, source, "--cluster", case.cluster, "-o", "neox.yaml").stdout
    assert "20.6 B parameters" in said
    assert {path.name for path in tmp_path.iterdir()} == {"neox.yaml", "neox.recipe.yaml", "neox.model.yaml"}
    assert mw.check(tmp_path / "neox.yaml") == []


def test_the_functions_do_what_the_verbs_do(folder: Path) -> None:
    done = mw.export(folder / "plan.yaml", to="megatron")
    read = mw.import_plan(
        done.files["megatron.args"].split(), system="megatron", cluster="8xh100", model="llama-3.1-8b"
    )
    assert diff_plans(done.plan, read.inputs.plan.model_copy(update={"execution": done.plan.execution})) == []
