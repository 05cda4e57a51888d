"""The worked examples in the docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import meshwright.cost

MODULES = [f"meshwright.cost.{module.name}" for module in pkgutil.iter_modules(meshwright.cost.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples_come_out_as_written(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_worked_examples() -> None:
    tried = sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES)
    assert tried >= 10
