"""The README's commands, run: `python -m tests.readme` writes their output into it, the test compares."""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def rendered(text: str) -> str:
    """The text with the output of every command of its console blocks as it is today."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        return _CONSOLE.sub(lambda block: f"```console\n{_run_block(block.group(1), folder)}```", text)


def _run_block(block: str, folder: str) -> str:
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"{command}\n{_output(command[2:], folder)}" for command in commands)


def _output(command: str, folder: str) -> str:
    program, *arguments = shlex.split(command)
    if program == "meshwright":
        program, arguments = sys.executable, ["-m", "meshwright", *arguments]
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), f"{command}: {done.stderr}"
    return done.stdout


def python_blocks(text: str) -> list[str]:
    """The Python of the README."""
    return _PYTHON.findall(text)


if __name__ == "__main__":
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
