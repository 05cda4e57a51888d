"""`make demo` does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo" / "demo.py"


@pytest.mark.timeout(240)
def test_the_demo_trains_as_one_process_does_and_the_loss_falls() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"^\d+ +(\d\.\d{6})", done.stdout, re.MULTILINE)]
    assert len(losses) == 20
    assert losses[-1] < 0.8 * losses[0]
    for said in (
        "parameters   3.08 M",
        "predicted from public round figures",
        "measured, median",
        "largest difference",
    ):
        assert said in done.stdout
