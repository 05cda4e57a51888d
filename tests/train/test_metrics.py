"""Metrics: every step once, whatever was killed in between; tools that are not there are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import MeshwrightError
from meshwright.recipe.run import Run
from meshwright.train.metrics import FILE, Lines, sinks


def run_in(folder: Path, **logging: Any) -> Run:
    recipe = {"global_batch": 4, "sequence": 16}
    data = {"meshwright_run": 1, "model": "gpt2", "recipe": recipe, "steps": 9, "folder": str(folder)}
    return Run.from_data(data | {"logging": logging})


def steps_in(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / FILE).read_text().splitlines()]


def test_a_run_that_goes_on_drops_what_was_told_of_steps_that_it_takes_again(tmp_path: Path) -> None:
    lines = Lines(tmp_path, 0)
    for step in range(1, 6):
        lines.tell({"event": "step", "step": step})
    lines.close()
    with (tmp_path / FILE).open("a") as file:
        file.write('{"event": "step", "st')  # killed in the middle of a line
    lines = Lines(tmp_path, 3)
    lines.tell({"event": "step", "step": 4})
    lines.close()
    assert steps_in(tmp_path) == [1, 2, 3, 4]


def test_a_kill_while_lines_are_dropped_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(tmp_path, 0)
    for step in range(1, 6):
        lines.tell({"event": "step", "step": step})
    lines.close()

    def killed(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Lines(tmp_path, 3)
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5]


def test_tensorboard_has_a_point_for_each_figure(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    opened = sinks(run_in(tmp_path, every=1), 0)
    for step, loss in ((1, 3.0), (2, 2.5)):
        for sink in opened:
            sink.tell({"event": "step", "step": step, "loss": loss, "mfu": None})
    for sink in opened:
        sink.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("step/loss")] == [(1, 3.0), (2, 2.5)]
    assert found.Tags()["scalars"] == ["step/loss"]


def test_a_tool_that_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(MeshwrightError, match=r"logging.mlflow needs 'mlflow'.*pip install mlflow"):
        sinks(run_in(tmp_path, mlflow="experiment", tensorboard=False), 0)
