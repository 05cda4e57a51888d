"""`make demo` does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo" / "demo.py"


@pytest.mark.timeout(600)
def test_the_demo_is_killed_and_goes_on_under_another_plan_as_if_nothing_had_happened() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    both = re.findall(r"^(2[1-4]) +(\d\.\d+) +(\d\.\d+) +(\d\.\de[-+]\d\d)$", done.stdout, re.MULTILINE)
    assert [step for step, *_ in both] == ["21", "22", "23", "24"]
    assert all(float(apart) < 1e-3 for *_, apart in both)
    for said in ("parameters   9.9", "predicted from this machine's figures", "measured, median", "it writes"):
        assert said in done.stdout
