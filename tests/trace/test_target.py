"""`meshwright model module:function`, and what else names a model."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.errors import MeshwrightError, UnknownNameError
from meshwright.trace.target import find_model, load

CODE = """
from torch import nn, rand

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), rand(3, 4)

class Zoo:
    @staticmethod
    def small():
        return build()

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mw_traced_models.py").write_text(CODE)
    (tmp_path / "mw_traced_broken.py").write_text("import math\n1 / 0\n")
    (tmp_path / "mw_traced_needing.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    for name in ("mw_traced_models", "mw_traced_broken", "mw_traced_needing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_the_command_line_shows_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["model", "mw_traced_models:build"])
    assert not caught.value.code
    shown = capsys.readouterr().out
    assert "58" in shown
    assert "traced from torch.nn" in shown


@pytest.mark.usefixtures("here")
def test_a_function_inside_of_a_class_is_found() -> None:
    assert find_model("mw_traced_models:Zoo.small").parameters == 58
    assert str(Path.cwd()) not in sys.path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        ("mw_traced_models:builds", UnknownNameError, "there is no 'builds'; did you mean 'build'?"),
        ("mw_traced_nowhere:build", UnknownNameError, "there is no module 'mw_traced_nowhere' here"),
        ("mw_traced_models.inner:build", UnknownNameError, "there is no module 'mw_traced_models.inner'"),
        ("mw_traced_broken:build", MeshwrightError, "mw_traced_broken.py:2: ZeroDivisionError"),
        ("mw_traced_needing:build", MeshwrightError, "needs 'a_package_that_is_not_there', which is not installed"),
        ("mw_traced_models:number", MeshwrightError, "a int is no torch.nn.Module"),
        ("llama-3.1-8", UnknownNameError, "did you mean 'llama-3.1-8b'?"),
    ],
)
def test_what_leads_nowhere_is_named(target: str, kind: type[MeshwrightError], said: str) -> None:
    with pytest.raises(kind) as caught:
        find_model(target)
    assert said in str(caught.value)


def test_an_attribute_is_loaded_as_it_is() -> None:
    assert load("math:pi") == pytest.approx(3.14159, abs=1e-4)


def test_names_and_files_need_no_torch() -> None:
    code = (
        "import sys\nfrom meshwright.trace.target import find_model\n"
        "assert find_model('gpt2').parameters\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
