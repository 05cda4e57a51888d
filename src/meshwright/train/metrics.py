"""What a run tells of itself, and where to: JSON lines always, TensorBoard, Weights & Biases, MLflow.

An event is plain data: `event` (`step`, `evaluation`, `checkpoint`, `resume`, `end`), `step` (how many were taken), and
figures. Rank 0 tells them.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from meshwright.errors import MeshwrightError
from meshwright.recipe.run import Logging, Run
from meshwright.train.files import write_synced

Event = dict[str, Any]
Tell = Callable[[Event], None]
FILE = "metrics.jsonl"


class Sink(Protocol):
    """One place that events go to."""

    def tell(self, event: Event) -> None:
        """Take an event."""
        ...

    def close(self) -> None:
        """Bring all to its place."""
        ...


class Lines:
    """`metrics.jsonl`: an event a line. What a run that was killed told of later steps than it goes on from is
    dropped, so that a curve has every step once.
    """

    def __init__(self, folder: Path, first: int) -> None:
        path = folder / FILE
        kept = [line for line in _lines(path) if json.loads(line).get("step", 0) <= first]
        write_synced(path, "".join(kept))  # a kill now loses no line
        self._file = path.open("a", encoding="utf-8")

    def tell(self, event: Event) -> None:
        """A line, there at once."""
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines(path: Path) -> list[str]:
    """The whole lines of a file: a killed run may have left half of one."""
    if not path.exists():
        return []
    found = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return [line for line in found if line.endswith("\n") and _is_json(line)]


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def figures(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event, under names that say of what event they are.

    >>> figures({"event": "step", "step": 3, "loss": 2.5, "mfu": None})
    {'step/loss': 2.5}
    """
    kind = event["event"]
    known = ((name, value) for name, value in event.items() if name not in ("event", "step", "time"))
    return {f"{kind}/{name}": float(value) for name, value in known if isinstance(value, int | float)}


class TensorBoard:
    """Scalars for TensorBoard, in the run's folder."""

    def __init__(self, run: Run, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        where = str(Path(run.folder) / "tensorboard")
        self._writer = SummaryWriter(where, purge_step=first + 1 if first else None)

    def tell(self, event: Event) -> None:
        """A point for each figure."""
        for name, value in figures(event).items():
            self._writer.add_scalar(name, value, event["step"])

    def close(self) -> None:
        """Write what is waiting."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, which a resumed run goes on with: its name is the folder's."""

    def __init__(self, run: Run, first: int) -> None:
        name = Path(run.folder).resolve().name
        self._run = _tool("wandb").init(
            project=run.logging.wandb, name=name, id=name, resume="allow", dir=run.folder, config=run.as_data()
        )

    def tell(self, event: Event) -> None:
        """The figures of a step."""
        self._run.log(figures(event), step=event["step"])

    def close(self) -> None:
        """Send what is waiting."""
        self._run.finish()


class MlFlow:
    """A run of an MLflow experiment."""

    def __init__(self, run: Run, first: int) -> None:
        self._tool = _tool("mlflow")
        self._tool.set_experiment(run.logging.mlflow)
        self._tool.start_run(run_name=Path(run.folder).resolve().name)

    def tell(self, event: Event) -> None:
        """The figures of a step."""
        self._tool.log_metrics(figures(event), step=event["step"])

    def close(self) -> None:
        """End the run."""
        self._tool.end_run()


def _tool(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MeshwrightError(f"logging.{name} needs '{name}', which is not installed: pip install {name}") from None


_TOOLS: dict[str, Callable[[Run, int], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MlFlow,
}
"""A key of `logging` → the sink that it asks for."""


def sinks(run: Run, first: int) -> list[Sink]:
    """Where the events of a run go that begins after `first` steps. Raises MeshwrightError for a tool that is not here,
    OSError for a folder that cannot be written.
    """
    wanted: Logging = run.logging
    opened = [make(run, first) for name, make in _TOOLS.items() if getattr(wanted, name)]
    return [*opened, Lines(Path(run.folder), first)]
