"""What the README prints, its commands print; what its Python does, it does."""

import os
from pathlib import Path

from meshwright.train.launch import WorkerPool
from tests.readme import README, ROOT, python_blocks, rendered


def test_every_command_of_the_readme_prints_what_it_shows() -> None:
    text = README.read_text(encoding="utf-8")
    assert rendered(text) == text, "the README is out of date: python -m tests.readme"


def _run(code: str, folder: Path) -> float:
    os.chdir(folder)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    return float(names["loss"])  # type: ignore[arg-type]


def test_the_python_of_the_readme_trains(pool: WorkerPool) -> None:
    for code in python_blocks(README.read_text(encoding="utf-8")):
        losses = pool.run(_run, code, ROOT)
        assert len(set(losses)) == 1
        assert 4.0 < losses[0] < 8.0
