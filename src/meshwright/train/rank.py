"""A whole run on one rank, from the module to the last checkpoint."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.runtime.parallel_model import ParallelModel
from meshwright.runtime.parallelize import parallelize
from meshwright.train import checkpoint
from meshwright.train.agreement import on_first, together
from meshwright.train.build import build_module
from meshwright.train.checkpoint import contents
from meshwright.train.checkpoint_boxes import CheckpointError
from meshwright.train.checkpoints import find
from meshwright.train.data import Dataset, open_data, prepare
from meshwright.train.job import Job, Outcome
from meshwright.train.metrics import Event, Sink, Tell, sinks
from meshwright.train.optimizers import Stepper
from meshwright.train.saver import Saver
from meshwright.train.trainer import Trainer
from meshwright.version import __version__

LOGS = "logs"


def run_on_rank(job: Job, tell: Tell) -> Outcome:
    """Take this rank's part of a run, on torch.distributed's default process group. `tell` hears the events of rank 0
    besides the sinks that the run names.

    Raises MeshwrightError, the same on every rank, for what a user can fix.
    """
    with _log_file(job.folder):
        # What can be wrong with data is known in seconds, before a large model is built.
        data, held_out = _data(job)
        place = on_first(partial(find, job.run.checkpoints.resume, job.folder))
        module = together(partial(build_module, job.run, kernels=job.inputs.plan.execution.kernels))
        parallel = parallelize(module, job.inputs)
        stepper = Stepper(parallel, job.run.recipe.optimizer)
        facts = _restored(job, place, stepper, parallel, data)
        first = int(facts["step"]) if facts else 0
        saver = Saver(job.folder, job.run.checkpoints, partial(_facts, job, data), last=first if facts else None)
        with _told(job, first, tell) as to_all:
            if place is not None:
                to_all({"event": "resume", "step": first, "place": str(place), "processes": facts["processes"]})
            trainer = Trainer(job, parallel, stepper=stepper, data=data, held_out=held_out, saver=saver, tell=to_all)
            outcome = trainer.train(first)
            to_all({"event": "end", "step": outcome.step, "loss": outcome.loss, "stopped": outcome.stopped})
        return outcome


def _data(job: Job) -> tuple[Dataset, Dataset | None]:
    """What is learnt from, and what is judged on."""
    run, model, wanted = job.run, job.inputs.model, job.run.evaluation
    on_first(partial(prepare, run.data, run.recipe, model, job.folder))
    data = together(partial(open_data, run.data, run.recipe, model, folder=job.folder))
    if wanted is None:
        return data, None
    if wanted.data is None:
        return data, together(partial(open_data, run.data, run.recipe, model, part="held_out", folder=job.folder))
    # What is judged is what is learnt: tokens of the same tokenizer.
    same = {"tokenizer": run.data.tokenizer, "chat_template": run.data.chat_template}
    judged = wanted.data.model_copy(update=same)
    on_first(partial(prepare, judged, run.recipe, model, job.folder))
    return data, together(partial(open_data, judged, run.recipe, model, folder=job.folder))


def _facts(job: Job, data: Dataset, step: int) -> Mapping[str, Any]:
    """What a checkpoint says of itself."""
    return {
        "step": step,
        "model": job.inputs.model.fingerprint,
        "optimizer": job.run.recipe.optimizer.name,
        "data": data.state(step),
        "processes": dist.get_world_size(),
        "meshwright": __version__,
        "torch": torch.__version__,
    }


def _restored(job: Job, place: Path | None, stepper: Stepper, parallel: ParallelModel, data: Dataset) -> dict[str, Any]:
    """Go on from a checkpoint: parameters, optimizer, the data's position, what dropout is drawn from. Returns its
    facts; empty where there is none.
    """
    if place is None:
        return {}
    facts = checkpoint.check(place)
    together(partial(_check_same, job, place, facts))
    together(partial(data.check_state, facts.get("data", {})))
    wanted = contents(parallel, stepper)
    if "optimizer" not in facts:  # converted weights, with which training begins
        wanted = {name: stored for name, stored in wanted.items() if name.startswith(f"{checkpoint.PARAMETERS}/")}
    checkpoint.read(place, wanted)
    parallel.step = int(facts["step"])
    return facts


def _check_same(job: Job, place: Path, facts: Mapping[str, Any]) -> None:
    optimizer = job.run.recipe.optimizer.name
    if facts["model"] != job.inputs.model.fingerprint:
        raise CheckpointError(f"the checkpoint {place} is of another model than {job.run.model}: take another folder")
    if facts.get("optimizer", optimizer) != optimizer:
        raise CheckpointError(f"the checkpoint {place} has states of {facts['optimizer']}, and the recipe {optimizer}")
    if facts["step"] > job.run.last_step:
        raise CheckpointError(
            f"the checkpoint {place} is of step {facts['step']}, and the run has {job.run.last_step}; take more steps"
        )


@contextlib.contextmanager
def _told(job: Job, first: int, tell: Tell) -> Iterator[Tell]:
    """What tells an event to all sinks, on rank 0; on others to none. Opening them may fail, which all ranks hear."""
    opened: list[Sink] = []

    def open_all() -> None:
        opened.extend(sinks(job.run, first))

    on_first(open_all)

    def to_all(event: Event) -> None:
        if dist.get_rank() == 0:
            for sink in opened:
                sink.tell(event)
            tell(event)

    try:
        yield to_all
    finally:
        for sink in opened:
            sink.close()


@contextlib.contextmanager
def _log_file(folder: Path) -> Iterator[None]:
    """Python's log of this rank goes to a file of its own, each line with the rank."""
    rank = dist.get_rank()

    def open_file() -> logging.FileHandler:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        return logging.FileHandler(folder / LOGS / f"rank-{rank}.log", encoding="utf-8")

    handler = together(open_file)
    handler.setFormatter(logging.Formatter(f"%(asctime)s [rank {rank}] %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("the run ends here")
        raise
    finally:
        root.removeHandler(handler)
        handler.close()
