"""How long the planning verbs take from a cold start, in an environment with the base package only.

Run `.venv/bin/python benchmarks/cold_start.py`. Exits with 1 where a median is over the limit.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
MESHWRIGHT = ROOT / ".venv-base" / "bin" / "meshwright"
RUNS = 11
LIMIT_S = 0.5
VERBS = ["--version", "model llama-3.1-405b --json", "cluster 8xh100 --json"]
# Bytecode is kept, as it is for an installed package, whatever this shell says.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(verb: str) -> float:
    """The wall time of one process, from its start to its end."""
    start = time.perf_counter()
    subprocess.run(
        [MESHWRIGHT, *verb.split()],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def main() -> int:
    subprocess.run(["make", "--silent", ".venv-base/.stamp"], cwd=ROOT, check=True)
    table = Table("meshwright …", title=f"seconds of {RUNS} processes, median at most {LIMIT_S}")
    for name in ("min", "median", "max"):
        table.add_column(name, justify="right")
    slow = []
    for verb in VERBS:
        seconds(verb)  # writes the bytecode
        times = [seconds(verb) for _ in range(RUNS)]
        median = statistics.median(times)
        table.add_row(verb, *(f"{t:.3f}" for t in (min(times), median, max(times))))
        if median > LIMIT_S:
            slow.append(verb)
    console = Console()
    console.print(table)
    if slow:
        console.print(f"over {LIMIT_S} s: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
