"""A run with all that it names found: what every rank is given."""

from dataclasses import dataclass
from pathlib import Path

from meshwright.plan.rules import Inputs
from meshwright.recipe.run import Run


@dataclass(frozen=True)
class Job:
    """A run, its plan with model, cluster and recipe, and what was predicted."""

    run: Run
    inputs: Inputs
    predicted_s: float | None = None
    """Seconds of a step; none where nothing was predicted."""
    flops: float | None = None
    """Matrix FLOPs of a step."""
    peak: float | None = None
    """FLOP per second of all devices; none where it is not known."""

    @property
    def folder(self) -> Path:
        """The run's."""
        return Path(self.run.folder)


@dataclass(frozen=True)
class Outcome:
    """How a run ended on a rank."""

    step: int
    """Steps that were taken in all."""
    loss: float | None
    """Of the last one; none where this part of the run took none."""
    stopped: bool
    """Whether it was asked to stop before its last step."""
