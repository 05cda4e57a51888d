"""How long `meshwright plan` takes from a cold start, how close its answer is proven to be, and how it grows.

Run `.venv/bin/python benchmarks/plan.py [--quick | --growth] [--time-limit 10] [--gap 0.03] [--processes N]`. Exits
with 1 where a limit is passed: wall seconds with the start of the process, gap, and peak memory. The search shares its
work among as many processes as there are cores; seconds of the processor are theirs together. A search ends by the
clock, so give it a longer limit on a busy machine. The files are compiled before, as an installation does. Below the
tables stands how long this machine takes for a plain loop, before and after them: a shared one changes its speed.
`--quick` leaves out the growth with layers and devices, `--growth` all else.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from meshwright.model.hf_config import from_config
from meshwright.model.spec import LayerStack, ModelSpec

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
DISTINCT = (1, 2, 4, 8, 16, 32)
"""Kinds of layers among the 32 of a model."""


LOOP = 6_000_000
"""Additions of the plain loop."""


class Run(NamedTuple):
    """One process."""

    seconds: float
    cpu_seconds: float
    answer: dict[str, Any] | None


def distinct(kinds: int, folder: Path) -> Setting:
    """A Llama of 32 layers, of which so many runs have feed-forwards of unlike widths, as a file."""
    stacks, each = list[LayerStack](), 32 // kinds
    for place in range(kinds):
        sizes = {"hidden_size": 4096, "intermediate_size": 14336 - 256 * place, "num_hidden_layers": 32}
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
        whole = from_config({"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | sizes | heads)
        first, body, last = whole.stacks
        span, before = f"decoder.{place * each}-{place * each + each - 1}", f"decoder.{place * each - 1}"
        span = span if each > 1 else f"decoder.{place}"
        stacks.append(body.model_copy(update={"span": span, "reads": (before,) if place else body.reads}))
    model = ModelSpec(name=f"{kinds} kinds", family="llama", stacks=(first, *stacks, last), shared=whole.shared)
    path = folder / f"{kinds}.yaml"
    path.write_text(json.dumps({"meshwright_model": 1} | model.as_data()))
    return Setting(str(path), "8x8xh100", 4096, 512)


def loop_seconds() -> float:
    """Of the processor, for the plain loop."""
    start, total = time.process_time(), 0
    for each in range(LOOP):
        total += each * each % 7
    return time.process_time() - start


def run(setting: Setting, typed: argparse.Namespace, compiled: Path) -> Run:
    """Plan in a process of its own."""
    command = [sys.executable, "-m", "meshwright", "plan", "--json", "--model", setting.model]
    command += ["--cluster", setting.cluster, "--seq", str(setting.sequence), "--global-batch", str(setting.batch)]
    command += ["--time-limit", f"{typed.time_limit:g}", "--gap", f"{typed.gap:g}"]
    command += ["--processes", str(typed.processes)] if typed.processes else []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(compiled)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu, json.loads(found.stdout) if found.returncode == 0 else None)


def show(title: str, settings: tuple[Setting, ...], typed: argparse.Namespace, compiled: Path) -> list[str]:
    """A table of runs; gives what passed its limit."""
    table = Table(title=title)
    for name in ("model", "cluster", "wall s", "CPU s", "limit", "step s", "gap", "choices", "simulated"):
        table.add_column(name, justify="left" if name in ("model", "cluster") else "right")
    failed = []
    for setting in settings:
        found = run(setting, typed, compiled)
        said = f"{setting.model} on {setting.cluster}"
        if found.answer is None:
            failed.append(f"{said}: no answer")
            continue
        answer = found.answer
        if setting.limit is not None and found.seconds > setting.limit:
            failed.append(f"{said}: {found.seconds:.1f} s, over {setting.limit:g}")
        if setting.limit is not None and answer["gap"] > MOST_GAP + 1e-9:
            failed.append(f"{said}: a gap of {answer['gap']:.1%}, over {MOST_GAP:.0%}")
        limit = "" if setting.limit is None else f"{setting.limit:g}"
        cells = (f"{found.seconds:.2f}", f"{found.cpu_seconds:.2f}", limit, f"{answer['estimate']['step_time_s']:.4g}")
        counts = (str(answer["considered"]), str(answer["simulated"]))
        table.add_row(Path(setting.model).name, setting.cluster, *cells, f"{answer['gap']:.2%}", *counts)
    Console().print(table)
    return failed


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--gap", type=float, default=MOST_GAP)
    parser.add_argument("--processes", type=int, help="that share each search; none: one a core")
    given, failed = parser.parse_args(), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "compiled"
        run(Setting("gpt2", "1xh100", 512, 8), given, compiled)
        before = loop_seconds()
        if not given.growth:
            failed = show("plans from a cold start", SETTINGS, given, compiled)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            if peak > MOST_BYTES:
                failed.append(f"a peak of {peak / 2**20:.0f} MiB, over {MOST_BYTES / 2**20:.0f}")
            Console().print(f"largest process: {peak / 2**20:.0f} MiB")
        if not given.quick:
            show("growth with devices", BY_DEVICES, given, compiled)
            kinds = tuple(distinct(kinds, Path(folder)) for kinds in DISTINCT)
            show("growth with kinds of layers", kinds, given, compiled)
        Console().print(f"a loop of {LOOP:,} sums: {before:.2f} s before, {loop_seconds():.2f} s after")
    for each in failed:
        Console().print(each)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
