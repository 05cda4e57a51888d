"""What the README prints, its commands print; what its Python does, it does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import README, ROOT, python_blocks, rendered


def test_every_command_of_the_readme_prints_what_it_shows() -> None:
    text = README.read_text(encoding="utf-8")
    assert rendered(text) == text, "the README is out of date: python -m tests.readme"


@pytest.mark.timeout(180)
def test_the_python_of_the_readme_trains_under_torchrun(tmp_path: Path) -> None:
    (code,) = python_blocks(README.read_text(encoding="utf-8"))
    script = tmp_path / "train.py"
    script.write_text(code, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    done = subprocess.run([*torchrun, script], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"step \d: loss (\d\.\d+)", done.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 0.5
