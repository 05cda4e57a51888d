"""What a run shows while it goes: a line for each event, and on a terminal how far it has come."""

import json
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from meshwright.recipe.run import Run
from meshwright.report.screen import write
from meshwright.units import show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from rich.progress import Progress

    from meshwright.train.job import Job

Event = dict[str, Any]


class Screen:
    """Where the events of a run go that a person, or with `as_json` a program, reads."""

    def __init__(self, run: Run, *, as_json: bool) -> None:
        self._run, self._as_json = run, as_json
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, job: "Job") -> None:
        """Say what is about to run."""
        self.tell(
            {
                "event": "begin",
                "step": 0,
                "model": job.inputs.model.name,
                "processes": job.inputs.plan.world_size,
                "plan": job.inputs.plan.name or job.run.plan,
                "searched": job.run.plan is None,
                "steps": job.run.last_step,
                "predicted_step_time_s": job.predicted_s,
                "folder": job.run.folder,
            }
        )
        if not self._as_json and sys.stderr is not None and sys.stderr.isatty():
            self._start_bar(job.run.last_step)

    def tell(self, event: Event) -> None:
        """Show an event."""
        if self._as_json:
            write(json.dumps(event) + "\n")
            return
        line = line_of(event, self._run)
        if self._bar is None:
            write(line + "\n")
            return
        self._bar.update(self._task, completed=event["step"])
        self._bar.console.print(line, highlight=False, markup=False)

    def _start_bar(self, steps: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("training", total=steps)
        self._bar.start()


def line_of(event: Event, run: Run) -> str:
    """An event as a line.

    >>> recipe = {"global_batch": 2, "sequence": 8}
    >>> run = Run.from_data({"meshwright_run": 1, "model": "m", "recipe": recipe, "steps": 9})
    >>> line_of({"event": "checkpoint", "step": 4, "place": "run/checkpoints/step-00000004", "seconds": 0.5}, run)
    'step 4/9: saved run/checkpoints/step-00000004 in 500 ms'
    """
    say = _LINES.get(event["event"], _any)
    return say(event, f"step {event['step']}/{run.last_step}")


def _begin(event: Event, _: str) -> str:
    how = "the fastest plan that was found" if event["searched"] else f"plan '{event['plan']}'"
    predicted = event["predicted_step_time_s"]
    time = f", predicted {show_seconds(predicted)} a step" if predicted else ""
    return (
        f"{event['model']}: {event['steps']} steps on {event['processes']} processes under {how}{time}; "
        f"all goes to {event['folder']}"
    )


def _step(event: Event, at: str) -> str:
    norm, mfu, predicted = event["gradient_norm"], event["mfu"], event["predicted_step_time_s"]
    pieces = [
        f"loss {event['loss']:.4f}",
        f"norm {norm:.3g}" if norm is not None else None,
        f"rate {event['learning_rate']:.2e}",
        f"{show_count(event['tokens_per_s'])} tokens/s",
        f"{show_seconds(event['step_time_s'])} a step"
        + (f" (predicted {show_seconds(predicted)})" if predicted else ""),
        show_bytes(event["memory_bytes"]),
        f"MFU {mfu:.1%}" if mfu is not None else None,
    ]
    return f"{at}: " + ", ".join(piece for piece in pieces if piece is not None)


def _evaluation(event: Event, at: str) -> str:
    return f"{at}: loss {event['loss']:.4f} on what is held out, in {show_seconds(event['seconds'])}"


def _checkpoint(event: Event, at: str) -> str:
    return f"{at}: saved {event['place']} in {show_seconds(event['seconds'])}"


def _resume(event: Event, at: str) -> str:
    return f"{at}: going on from {event['place']}, which {event['processes']} processes wrote"


def _restart(event: Event, at: str) -> str:
    return f"{at}: {event['why']}; beginning again from {event['place']} ({event['left']} more times)"


def _end(event: Event, at: str) -> str:
    loss = f", loss {event['loss']:.4f}" if event["loss"] is not None else ""
    return f"{at}: {'stopped as asked' if event['stopped'] else 'done'}{loss}"


def _any(event: Event, at: str) -> str:
    return f"{at}: {event['event']}"


_LINES: dict[str, Callable[[Event, str], str]] = {
    "begin": _begin,
    "step": _step,
    "evaluation": _evaluation,
    "checkpoint": _checkpoint,
    "resume": _resume,
    "restart": _restart,
    "end": _end,
}
