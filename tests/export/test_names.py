"""Megatron-LM's training script knows every argument that we write: names, kinds and choices, by a list of its own."""

import argparse
import contextlib
import io
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

import meshwright as mw
from meshwright.export.handing import export_plan
from meshwright.export.megatron import MEGATRON
from meshwright.plan.rules import Inputs
from tests.export.test_accepted import MEGATRON as PLANS
from tests.export.test_accepted import written
from tests.export.test_round_trip import told

KEPT: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("megatron_arguments.yaml").read_text(encoding="utf-8"))


def parser() -> argparse.ArgumentParser:
    """Megatron-LM's own, as far as the list goes: it takes no abbreviations either."""
    made = argparse.ArgumentParser(allow_abbrev=False)
    for name in KEPT["flags"]:
        made.add_argument(name, action="store_true")
    for name in KEPT["values"]:
        made.add_argument(name)
    for name in KEPT["lists"]:
        made.add_argument(name, nargs="+")
    for name, choices in KEPT["choices"].items():
        made.add_argument(name, choices=choices)
    return made


def parsed(text: str) -> argparse.Namespace:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            return parser().parse_args(shlex.split(text))
        except SystemExit:
            pytest.fail(f"{KEPT['release']} does not take {text}\n{said.getvalue().splitlines()[-1]}")


def test_every_argument_that_can_be_written_is_one_of_the_release() -> None:
    known = {*KEPT["flags"], *KEPT["values"], *KEPT["lists"], *KEPT["choices"]}
    assert {key.name for key in MEGATRON.keys if not key.old} - known == set()


@pytest.mark.parametrize(("model", "cluster", "degrees"), PLANS, ids=str)
def test_the_release_takes_what_is_written(model: str, cluster: str, degrees: dict[str, Any]) -> None:
    found = parsed(written("megatron", model, cluster, **degrees)["megatron.args"])
    assert int(found.tensor_model_parallel_size or 1) == degrees.get("tp", 1)
    assert found.hidden_size is not None


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(told("megatron"))
def test_the_release_takes_what_is_written_of_any_plan(inputs: Inputs) -> None:
    parsed(export_plan(inputs, "megatron").files["megatron.args"])


def test_models_of_other_kinds_are_written_in_arguments_of_the_release() -> None:
    cluster, recipe = mw.cluster("8xh100"), mw.recipe(global_batch=64, sequence=1024)
    for name in ("gpt2", "gpt-neox-20b", "bloom-176b", "qwen3-8b", "mixtral-8x7b"):
        model = mw.model(name)
        inputs = Inputs(mw.uniform_plan(model, cluster, recipe, tp=4, recompute="full"), model, cluster, recipe)
        parsed(export_plan(inputs, "megatron").files["megatron.args"])


@pytest.mark.parametrize("text", ["--tensor-model-parallel 2", "--swiglu 1", "--normalization rmsnorm", "--lr"])
def test_what_is_no_argument_of_the_release_is_noticed(text: str) -> None:
    with pytest.raises(pytest.fail.Exception):
        parsed(text)
