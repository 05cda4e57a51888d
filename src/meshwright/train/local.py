"""A run on processes that are started here, one for each device of its plan, and begun again where one dies."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from meshwright.errors import MeshwrightError, first_line
from meshwright.train.checkpoints import Checkpoints, step_of
from meshwright.train.job import Job, Outcome
from meshwright.train.launch import WorkerError, WorkerPool, emit, preload
from meshwright.train.metrics import Tell
from meshwright.train.stopping import SIGNALS

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Refused:
    """What a rank says before it ends with an error that a user can fix."""

    message: str


def run_locally(job: Job, tell: Tell) -> Outcome:
    """Run a job on forked CPU processes of this machine; `tell` hears what rank 0 tells.

    Ctrl-C and SIGTERM let it save first; a second one ends it at once. Where a process dies or hangs, all end, and the
    run begins again from its last whole checkpoint, as often as `supervision.restarts` says.

    Raises MeshwrightError for what a user can fix; WorkerError, which says where every rank stood, for all else.
    """
    _check_cpu(job)
    preload()
    left = job.run.supervision.restarts
    with WorkerPool(job.inputs.plan.world_size, group_timeout=job.run.supervision.patience) as pool:
        while True:
            try:
                return _once(pool, job, tell)
            except WorkerError as error:
                latest = Checkpoints(job.folder).latest()
                if left < 1 or latest is None:
                    raise
                left -= 1
                _log.warning("%s", error)
                why = first_line(error)
                tell({"event": "restart", "step": step_of(latest), "why": why, "place": str(latest), "left": left})


def _check_cpu(job: Job) -> None:
    """Forked processes cannot share a GPU's driver with their parent, and there may be more than one machine."""
    other = next((name for name, each in job.inputs.cluster.devices.items() if each.backend != "gloo"), None)
    if other is not None:
        raise MeshwrightError(
            f"the plan is for {job.inputs.plan.world_size} {other} devices; start a process for each: torchrun "
            "--nproc-per-node N -m meshwright train ... (or srun), or train on CPU processes with cluster=cpu:4"
        )


def _once(pool: WorkerPool, job: Job, tell: Tell) -> Outcome:
    refused: list[str] = []

    def hear(rank: int, message: object) -> None:
        if isinstance(message, _Refused):
            refused.append(message.message)
        elif isinstance(message, dict):
            tell(message)

    with _passing_on(pool):
        try:
            outcomes = pool.run(_on_rank, job, timeout=None, on_message=hear)
        except WorkerError:
            if refused:
                raise MeshwrightError(refused[0]) from None
            raise
    return outcomes[0]


def _on_rank(job: Job) -> Outcome:
    from meshwright.train.rank import run_on_rank

    try:
        return run_on_rank(job, emit)
    except MeshwrightError as error:
        emit(_Refused(str(error)))
        raise


@contextlib.contextmanager
def _passing_on(pool: WorkerPool) -> Iterator[None]:
    """While entered, the first Ctrl-C or SIGTERM asks the workers to stop; a second one does what it usually does."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, before[each])
        pool.signal(signal.SIGTERM)

    try:
        for number in SIGNALS:
            signal.signal(number, hear)
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, before[number])
