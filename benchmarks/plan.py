"""How long `meshwright plan` takes from a cold start, how close its answer is proven to be, and how it grows.

Run `.venv/bin/python benchmarks/plan.py [--quick]`. Exits with 1 where a limit is passed: seconds with the start of the
process, gap, and peak memory. `--quick` leaves out the growth with layers and devices.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
MOST_GAP = 0.03
MOST_BYTES = 500 * 2**20


class Setting(NamedTuple):
    """What is planned, and within how many seconds."""

    model: str
    cluster: str
    sequence: int
    batch: int
    limit: float | None = None


SETTINGS = (
    Setting("llama-3.1-8b", "8xh100", 8192, 64, 1.0),
    Setting("llama-3.1-70b", "8x8xh100", 8192, 512, 2.0),
    Setting("llama-3.1-405b", "2048x8xh100", 8192, 2048, 10.0),
    Setting("deepseek-v3", "256x8xh800", 4096, 15360, 10.0),
)
BY_DEVICES = tuple(Setting("llama-3.1-8b", f"{nodes}x8xh100", 8192, 64 * nodes) for nodes in (1, 2, 4, 8, 16, 32))
BY_LAYERS = tuple(Setting(name, "8x8xh100", 4096, 512) for name in ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3"))


class Run(NamedTuple):
    """One process."""

    seconds: float
    cpu_seconds: float
    answer: dict[str, Any] | None


def run(setting: Setting) -> Run:
    """Plan in a process of its own."""
    command = [sys.executable, "-m", "meshwright", "plan", "--json", "--model", setting.model]
    command += ["--cluster", setting.cluster, "--seq", str(setting.sequence), "--global-batch", str(setting.batch)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu, json.loads(found.stdout) if found.returncode == 0 else None)


def show(title: str, settings: tuple[Setting, ...]) -> list[str]:
    """A table of runs; gives what passed its limit."""
    table = Table(title=title)
    for name in ("model", "cluster", "wall s", "CPU s", "limit", "step s", "gap", "choices", "simulated"):
        table.add_column(name, justify="left" if name in ("model", "cluster") else "right")
    failed = []
    for setting in settings:
        found = run(setting)
        said = f"{setting.model} on {setting.cluster}"
        if found.answer is None:
            failed.append(f"{said}: no answer")
            continue
        answer = found.answer
        if setting.limit is not None and found.seconds > setting.limit:
            failed.append(f"{said}: {found.seconds:.1f} s, over {setting.limit:g}")
        if setting.limit is not None and answer["gap"] > MOST_GAP:
            failed.append(f"{said}: a gap of {answer['gap']:.1%}, over {MOST_GAP:.0%}")
        limit = "" if setting.limit is None else f"{setting.limit:g}"
        cells = (f"{found.seconds:.2f}", f"{found.cpu_seconds:.2f}", limit, f"{answer['estimate']['step_time_s']:.4g}")
        counts = (str(answer["considered"]), str(answer["simulated"]))
        table.add_row(setting.model, setting.cluster, *cells, f"{answer['gap']:.2%}", *counts)
    Console().print(table)
    return failed


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    failed = show("plans from a cold start", SETTINGS)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if peak > MOST_BYTES:
        failed.append(f"a peak of {peak / 2**20:.0f} MiB, over {MOST_BYTES / 2**20:.0f}")
    Console().print(f"largest process: {peak / 2**20:.0f} MiB")
    if not quick:
        show("growth with devices", BY_DEVICES)
        show("growth with distinct layers", BY_LAYERS)
    for each in failed:
        Console().print(each)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
