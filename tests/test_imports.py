"""Imports run one way, as DESIGN.md draws them: read from the source, with what functions import inside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "meshwright"

FOUNDATION = {"errors", "explain", "units", "version", "yaml12", "document"}
INPUTS = {"model", "cluster", "recipe"}
PLANNING = INPUTS | {"plan", "cost"}
DOING = INPUTS | {"plan", "runtime"}
BELOW = PLANNING | DOING | {"trace", "train", "measure", "search", "validation"}
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in FOUNDATION},
    **{name: set() for name in INPUTS},
    "plan": INPUTS,
    "cost": INPUTS | {"plan"},
    "search": PLANNING,
    "validation": PLANNING,
    "trace": {"model"},
    "runtime": INPUTS | {"plan"},
    "train": DOING | {"trace"},
    "measure": DOING | {"train", "cost", "search"},
    "report": BELOW,
    "export": BELOW,
    "api": BELOW | {"export"},
    "adapters": BELOW | {"api"},
    "request": BELOW | {"api"},
    "cli": BELOW | {"api", "report", "export", "request"},
    "demo": BELOW | {"api", "report", "export", "cli"},
    "__main__": {"cli"},
    "__init__": INPUTS | {"api"},
}
"""A room of the house (a folder or file of the package) → the rooms that it may import, besides the foundation."""

HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "accelerate",
    "tensorboard",
    "lightning_fabric",
}
MAY_IMPORT_HEAVY = {"trace", "runtime", "train", "measure", "adapters", "demo"}


def room_of(file: Path, root: Path) -> str:
    return file.relative_to(root).parts[0].removesuffix(".py")


def imported(file: Path, root: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, full name, for types alone) of every import, wherever it stands."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        for name in _names(node, file, root):
            yield getattr(node, "lineno", 0), name, id(node) in typing


def _names(node: ast.AST, file: Path, root: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            inside = ("meshwright", *file.relative_to(root).parts[: -node.level])
            base = ".".join((*inside, base)).rstrip(".")
        return [f"{base}.{alias.name}" for alias in node.names]
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and called.endswith(("import_module", "__import__")) and node.args:
        name = node.args[0]
        return [name.value] if isinstance(name, ast.Constant) and isinstance(name.value, str) else []
    return []


def violations(root: Path) -> list[str]:
    """Imports that go the wrong way, as 'file:line: what'."""
    found = []
    for file in sorted(root.rglob("*.py")):
        room = room_of(file, root)
        if room not in MAY_IMPORT:
            found.append(f"{file.relative_to(root)}: no room of the house is called '{room}'; say what it may import")
            continue
        for line, name, for_types in imported(file, root):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            at = f"{file.relative_to(root)}:{line}"
            if package in HEAVY and room not in MAY_IMPORT_HEAVY and not for_types:
                found.append(f"{at}: {room} imports {package}")
            if package == "meshwright" and other in MAY_IMPORT.keys() - FOUNDATION - MAY_IMPORT[room] - {room}:
                found.append(f"{at}: {room} imports {other}")
    return found


def test_every_import_goes_the_way_that_the_design_draws() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("runtime/mesh.py", "from meshwright.cost.estimate import estimate_plan", "runtime imports cost"),
        ("runtime/mesh.py", "def f():\n    from meshwright.cost import memory", "runtime imports cost"),
        ("runtime/mesh.py", "from meshwright import cost", "runtime imports cost"),
        ("runtime/mesh.py", "import meshwright.cost.estimate as estimate", "runtime imports cost"),
        ("runtime/mesh.py", "from ..cost import estimate", "runtime imports cost"),
        ("runtime/mesh.py", "import importlib\nimportlib.import_module('meshwright.cost')", "runtime imports cost"),
        ("model/spec.py", "from meshwright.plan.spec import Plan", "model imports plan"),
        ("model/spec.py", "from meshwright.cluster.spec import Cluster", "model imports cluster"),
        ("plan/rules.py", "from meshwright.cost.memory import peak", "plan imports cost"),
        ("cost/estimate.py", "from meshwright.search.planner import plan", "cost imports search"),
        ("cost/estimate.py", "from meshwright.api import model", "cost imports api"),
        ("train/data.py", "from meshwright.measure.probe import probe", "train imports measure"),
        ("units.py", "from meshwright.model.spec import ModelSpec", "units imports model"),
        ("units.py", "from meshwright import model", "units imports model"),
        ("plan/rules.py", "import torch", "plan imports torch"),
        ("plan/rules.py", "def f():\n    from torch.nn import Module", "plan imports torch"),
        ("report/tables.py", "import torch", "report imports torch"),
        ("cli/base.py", "def f():\n    import transformers", "cli imports transformers"),
        ("fleet/jobs.py", "", "no room of the house is called 'fleet'"),
    ],
)
def test_a_planted_import_is_found(file: str, line: str, said: str, tmp_path: Path) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line)
    found = violations(tmp_path)
    assert len(found) == 1, found
    assert said in found[0]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (
            "runtime/mesh.py",
            "import torch\nfrom meshwright.plan.spec import Plan\nfrom meshwright.errors import PlanError",
        ),
        ("api.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import nn"),
        (
            "measure/compare.py",
            "from meshwright.cost.estimate import Estimate\nfrom meshwright.train.launch import run",
        ),
        ("plan/rules.py", "from meshwright.plan.spec import Plan"),
        ("model/resolve.py", "import torchlike"),
    ],
)
def test_an_import_that_goes_the_right_way_is_none(file: str, line: str, tmp_path: Path) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line)
    assert violations(tmp_path) == []
