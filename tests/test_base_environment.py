"""`pip install meshwright` is enough to plan: small, quick to start, and without torch or transformers.

benchmarks/cold_start.py measures how quick; here is what makes it so: no heavy library that a verb can do without.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # the first use may have to make the environment

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "datasets", "highspy", "numpy"}

# Each planning verb, and which of the heavy libraries it needs.
VERBS: dict[str, set[str]] = {
    "--version": set(),
    "model llama-3.1-405b --json": set(),
    "cluster 8xh100 --json": set(),
    "estimate examples/demo/plan.yaml --json": {"numpy"},
    "check examples/demo/plan.yaml --json": {"numpy"},
    "diff examples/demo/plan.yaml examples/demo/plan.yaml": set(),
    "schema plan": set(),
    "validate --source fms_fsdp --calibration ideal": {"numpy"},
    "doctor": {"torch", "numpy"},
}


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture(scope="session")
def base() -> Path:
    """The `bin` of the environment with the base package only, made where it is missing or out of date."""
    made = run("make", "--silent", f"PYTHON={sys.executable}", ".venv-base/.stamp")
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / ".venv-base" / "bin"


@pytest.mark.parametrize("package", ["torch", "transformers", "tokenizers", "safetensors", "datasets", "accelerate"])
def test_the_base_environment_lacks_the_runtimes_packages(base: Path, package: str) -> None:
    assert "ModuleNotFoundError" in run(base / "python", "-c", f"import {package}").stderr


def test_meshwright_imports_without_them(base: Path) -> None:
    imported = run(base / "python", "-c", "import meshwright")
    assert imported.returncode == 0, imported.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_the_verb_runs_without_them(base: Path, verb: str) -> None:
    done = run(base / "meshwright", *verb.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(("verb", "needed"), VERBS.items())
def test_the_verb_imports_only_what_it_needs(verb: str, needed: set[str]) -> None:
    """In this environment, where everything is installed and could be imported."""
    script = Path(sys.executable).with_name("meshwright")
    done = run(sys.executable, "-X", "importtime", script, *verb.split())
    assert done.returncode == 0, done.stderr
    imported = set(re.findall(r"^import time:.*\| +(\w+)$", done.stderr, flags=re.MULTILINE))
    assert "meshwright" in imported, "the list of imports was not read"
    assert imported & HEAVY <= needed
