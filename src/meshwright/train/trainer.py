"""The loop: a batch, its loss and gradients under the plan, a step of the optimizer; and what is told, judged, kept."""

import math
import resource
import sys
import time
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from meshwright.errors import MeshwrightError
from meshwright.runtime.parallel_model import ParallelModel
from meshwright.train.agreement import Vote
from meshwright.train.checkpoint import contents
from meshwright.train.job import Job, Outcome
from meshwright.train.learning_rate import share_of_peak
from meshwright.train.metrics import Tell
from meshwright.train.optimizers import Stepper
from meshwright.train.profile import Window
from meshwright.train.saver import Saver
from meshwright.train.stopping import StopSignals


class Data(Protocol):
    """What a run learns from."""

    def batch(self, step: int) -> dict[str, Tensor]:
        """The whole global batch of a step, the same on every rank and under every plan."""
        ...


@dataclass(frozen=True)
class Taken:
    """One optimizer step."""

    loss: float
    gradient_norm: float | None
    """None where it was neither clipped by nor to be told."""
    learning_rate: float


class Trainer:
    """A run on this rank. `tell` hears what happens, on rank 0."""

    def __init__(
        self,
        job: Job,
        parallel: ParallelModel,
        *,
        stepper: Stepper,
        data: Data,
        held_out: Data | None,
        saver: Saver,
        tell: Tell,
    ) -> None:
        self.run, self._job = job.run, job
        self.parallel, self._stepper, self._data, self._saver, self._tell = parallel, stepper, data, saver, tell
        self._held_out = held_out
        self._pace = Pace(job, tell)
        self._loss: float | None = None

    def train(self, first: int) -> Outcome:
        """Take the steps from `first` on, until the run's last, or until any rank is asked to stop: then save.

        Raises MeshwrightError, the same on every rank, for a loss that is no number and a checkpoint that cannot be
        written.
        """
        last, vote = self.run.last_step, Vote()
        done = first
        with StopSignals() as signals, Window(self._job) as window:
            while done < last:
                vote.ask(signals.wanted)
                window.at(done)
                self._pace.tell(done + 1, self._step(done))
                done += 1
                self._evaluate_when_due(done)
                if vote.answer():
                    break
                if done < last and self._saver.due(done):
                    self._save(done)
            if self._saver.last != done:
                self._save(done, wait=True)
            self._saver.finish()
        return Outcome(done, self._loss, done < last)

    def _step(self, step: int) -> Taken:
        settings, recipe = self.run.schedule, self.run.recipe
        rate = recipe.optimizer.learning_rate * share_of_peak(settings, step, self.run.last_step)
        loss = float(self.parallel.forward_backward(self._data.batch(step)))
        self._check("loss", loss, step)
        norm: float | None = None
        if recipe.clip_norm is not None:
            norm = float(self.parallel.clip_grad_norm_(recipe.clip_norm))
        elif self._pace.due(step + 1):
            norm = float(self.parallel.gradient_norm())
        if norm is not None:
            self._check("gradient norm", norm, step)
        self._stepper.step(rate)
        self._loss = loss
        return Taken(loss, norm, rate)

    def _check(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            kept = (
                "none was saved"
                if self._saver.last is None
                else f"the last checkpoint is that of step {self._saver.last}"
            )
            raise MeshwrightError(
                f"step {step + 1}: the {what} is {value}; the step was not taken, and {kept}. A smaller "
                "learning_rate, a longer warm_up, or clip_norm may help"
            )

    def _evaluate_when_due(self, done: int) -> None:
        wanted = self.run.evaluation
        if wanted is None or self._held_out is None or done % wanted.every:
            return
        start = time.perf_counter()
        losses = [float(self.parallel.evaluate(self._held_out.batch(number))) for number in range(wanted.batches)]
        seconds = time.perf_counter() - start
        self._tell({"event": "evaluation", "step": done, "loss": sum(losses) / len(losses), "seconds": seconds})
        self._pace.pause(seconds)

    def _save(self, done: int, *, wait: bool = False) -> None:
        start = time.perf_counter()
        place = self._saver.save(done, contents(self.parallel, self._stepper), wait=wait)
        seconds = time.perf_counter() - start
        self._tell({"event": "checkpoint", "step": done, "place": str(place), "seconds": seconds})
        self._pace.pause(seconds)


class Pace:
    """How fast a run goes, from one telling to the next."""

    def __init__(self, job: Job, tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._since, self._steps = time.perf_counter(), 0

    def due(self, done: int) -> bool:
        """Whether a step is told of: the first, every so many, and the last."""
        return done == 1 or done % self._job.run.logging.every == 0 or done == self._job.run.last_step

    def pause(self, seconds: float) -> None:
        """Leave out what was no step."""
        self._since += seconds

    def tell(self, done: int, taken: Taken) -> None:
        """Note a step; of those that are due, tell the means since the last one."""
        self._steps += 1
        if not self.due(done):
            return
        now, job = time.perf_counter(), self._job
        step_time = (now - self._since) / self._steps
        self._tell(
            {
                "event": "step",
                "step": done,
                "loss": taken.loss,
                "gradient_norm": taken.gradient_norm,
                "learning_rate": taken.learning_rate,
                "tokens": done * job.run.tokens_per_step,
                "tokens_per_s": job.run.tokens_per_step / step_time,
                "step_time_s": step_time,
                "predicted_step_time_s": job.predicted_s,
                "memory_bytes": peak_memory(),
                "mfu": job.flops / job.peak / step_time if job.flops and job.peak else None,
            }
        )
        self._since, self._steps = now, 0


def peak_memory() -> int:
    """Bytes: the most that this process had, of its GPU where it works on one, else of the host."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
