"""The worked examples in the docstrings: all of them come out as written, and formulas of cost have some."""

import doctest
import importlib
from pathlib import Path

import pytest

import meshwright

SOURCE = Path(meshwright.__file__).parent
WITH_EXAMPLES = {
    ".".join(("meshwright", *file.relative_to(SOURCE).with_suffix("").parts))
    for file in SOURCE.rglob("*.py")
    if ">>>" in file.read_text(encoding="utf-8")
}
HEAVY = tuple(f"meshwright.{room}" for room in ("trace", "runtime", "train", "measure", "adapters"))
"""Rooms that import torch."""

WITHOUT_FORMULAS = {
    "blocks",
    "calibration",
    "estimate",
    "habits",
    "host",
    "kernels",
    "order_graph",
    "placement",
    "reads",
    "repeats",
    "verdict",
    "wires",
}
"""Modules of cost that state no formula of their own."""


@pytest.mark.parametrize("name", sorted(WITH_EXAMPLES))
def test_worked_examples_come_out_as_written(name: str) -> None:
    if name.startswith(HEAVY):
        pytest.importorskip("torch")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_every_formula_of_cost_has_a_worked_example() -> None:
    modules = {file.stem for file in (SOURCE / "cost").glob("*.py")} - {"__init__"}
    shown = {name.rpartition(".")[2] for name in WITH_EXAMPLES if name.startswith("meshwright.cost.")}
    assert modules - shown - WITHOUT_FORMULAS == set()
