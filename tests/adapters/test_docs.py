"""The scripts of docs/adapters.md run as they stand there."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import meshwright as mw
from meshwright.train.launch import WorkerPool
from tests.adapters.scripts import as_started_by_torchrun
from tests.readme import ROOT

TEXT = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", TEXT, flags=re.DOTALL))
CONFIG = """{"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32}"""


def _run(script: str, folder: Path) -> dict[str, Any]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        with as_started_by_torchrun():
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(script, "docs/adapters.md", "exec"), names)
        return (
            {"loss": float(names["loss"].detach())}
            if "loss" in names
            else {"steps": names["trainer"].state.global_step}
        )
    finally:
        os.chdir(before)


@pytest.mark.parametrize(("name", "found"), [("train.py", "steps"), ("fabric.py", "loss")])
def test_a_script_of_the_document_runs(pool: WorkerPool, name: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(BLOCKS["recipe.yaml"], encoding="utf-8")
    recipe = mw.recipe(
        **{key: each for key, each in yaml.safe_load(BLOCKS["recipe.yaml"]).items() if "mesh" not in key}
    )
    model = mw.model(tmp_path / "config.json")
    mw.uniform_plan(model, mw.cluster("cpu:4"), recipe, tp=2, zero=3).write(tmp_path / "plan.yaml")
    assert len({str(each[found]) for each in pool.run(_run, BLOCKS[name], tmp_path)}) == 1
    assert (tmp_path / ("out/model.safetensors" if name == "train.py" else "kept/checkpoint.json")).is_file()
