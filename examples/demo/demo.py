"""`make demo`: a Llama of 10 M parameters is planned, trained on four CPU processes, killed, and goes on on two under
another plan, as if nothing had happened; then it writes some Python.

All of it by `meshwright train`, as one would type it. Exits with 1 where the loss does not fall, or the second part
does not learn what the first one did.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import meshwright as mw
from meshwright.measure.probe import probe
from meshwright.report.blocks import Block, Facts, Lines, Table, table
from meshwright.report.model import model_blocks
from meshwright.report.screen import show
from meshwright.train.launch import WorkerPool, preload
from meshwright.train.metrics import Event
from meshwright.units import show_seconds

HERE = Path(__file__).parent
MESHWRIGHT = (sys.executable, "-m", "meshwright")
FIRST, SECOND = 4, 2
"""Processes of the two parts."""
KILLED_AFTER, KEPT, WARM_UP = 24, 20, 3
"""The step after which the first part is killed, that of its last checkpoint, and steps that are not timed."""
TOLERANCE = 1e-3
"""Of the loss, relative, in float32: over a few steps of AdamW another order of summation shows in the fifth digit."""


def say(*blocks: Block) -> None:
    """Print blocks as the command line does."""
    show(False, dict, lambda: blocks)


def machine(processes: int, folder: Path) -> Path:
    """A cluster file with what this machine really does."""
    with WorkerPool(processes) as pool:
        found = probe(pool)
    path = folder / f"machine-{processes}.yaml"
    found.write(path)
    return path


@contextlib.contextmanager
def training(cluster: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Iterator[Event]]]:
    """`meshwright train` in a process of its own, and the events that it tells."""
    typed = (*MESHWRIGHT, "train", str(HERE / "run.yaml"), f"cluster={cluster}", f"folder={folder}", "--json")
    with subprocess.Popen(typed, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield process, (json.loads(line) for line in process.stdout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def train_until_killed(cluster: Path, folder: Path) -> list[Event]:
    """The first part: kill -9 in the middle of a step, after the last one that counts."""
    events = []
    with training(cluster, folder) as (process, told):
        for event in told:
            events.append(event)
            if event["event"] == "step" and event["step"] == KILLED_AFTER:
                os.kill(process.pid, signal.SIGKILL)
    return events


def train_to_the_end(cluster: Path, folder: Path) -> list[Event]:
    """The second part."""
    with training(cluster, folder) as (process, told):
        events = list(told)
        if process.wait():
            sys.exit(1)  # it has said why
    return events


def losses(events: list[Event]) -> dict[int, float]:
    """The loss of each step."""
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def step_times(events: list[Event]) -> tuple[float, float]:
    """Seconds of a step: predicted for this machine, and measured, the median."""
    steps = [event for event in events if event["event"] == "step"][WARM_UP:]
    return steps[0]["predicted_step_time_s"], statistics.median(event["step_time_s"] for event in steps)


def curve(first: dict[int, float], second: dict[int, float]) -> Table:
    """The loss of some steps, and of all that both parts took."""
    shown = sorted({1, *range(5, max(second) + 1, 5), *(first.keys() & second.keys())})
    rows = []
    for step in shown:
        a, b = first.get(step), second.get(step)
        apart = f"{abs(a - b) / a:.1e}" if a is not None and b is not None else ""
        rows.append((str(step), f"{a:.5f}" if a is not None else "", f"{b:.5f}" if b is not None else "", apart))
    title = "loss on the source of Python's standard library"
    return table(title, f"step | >{FIRST} processes | >{SECOND}, another plan | >apart", rows)


def timing(name: str, events: list[Event]) -> Facts:
    """Predicted and measured step time of a part."""
    predicted, measured = step_times(events)
    return Facts(
        f"step time, {name}",
        (
            ("predicted from this machine's figures", show_seconds(predicted)),
            ("measured, median", show_seconds(measured)),
            ("measured / predicted", f"{measured / predicted:.2f}"),
        ),
    )


def written(folder: Path) -> str:
    """What the model makes of the beginning of a function."""
    typed = (*MESHWRIGHT, "generate", str(folder), "--prompt", "def ", "--tokens", "120", "--temperature", "0.7")
    done = subprocess.run(typed, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() or done.stderr.strip()


def main() -> int:
    """The demonstration, in the order in which one would work."""
    started = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started ends with it
    preload()
    say(*model_blocks(mw.model(HERE / "llama-10m.json"), 128)[:2])
    with tempfile.TemporaryDirectory(prefix="meshwright-demo-") as place:
        work = Path(place)
        say(Lines("", (f"measuring this machine, then planning and training on {FIRST} processes ...",)))
        before = train_until_killed(machine(FIRST, work), work / "run")
        say(Lines("", (f"killed after step {KILLED_AFTER}; going on from step {KEPT} on {SECOND} processes ...",)))
        after = train_to_the_end(machine(SECOND, work), work / "run")
        first, second = losses(before), losses(after)
        say(curve(first, second), timing(f"{FIRST} processes", before), timing(f"{SECOND} processes", after))
        say(Lines("it writes", tuple(written(work / "run").splitlines())))
    both = sorted(first.keys() & second.keys())
    apart = max((abs(first[step] - second[step]) / first[step] for step in both), default=1.0)
    say(result(first, second, both, apart, time.perf_counter() - started))
    if second[max(second)] > 0.6 * first[1] or apart > TOLERANCE:
        say(Lines("", ("the loss did not fall, or what was resumed is another run: something is wrong",), "bad"))
        return 1
    return 0


def result(first: dict[int, float], second: dict[int, float], both: list[int], apart: float, seconds: float) -> Facts:
    """What it comes to."""
    return Facts(
        "result",
        (
            ("loss", f"{first[1]:.3f} to {second[max(second)]:.3f}"),
            ("steps that both parts took", f"{both[0]} to {both[-1]}"),
            ("largest difference between the two", f"{apart:.1e} of the loss"),
            ("the whole took", show_seconds(seconds)),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
