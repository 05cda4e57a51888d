"""A run on processes that torchrun or srun started: this is one of them."""

from collections.abc import Callable

import torch.distributed as dist

from meshwright.train.agreement import on_first
from meshwright.train.job import Job, Outcome
from meshwright.train.launch import Launched, join_launched
from meshwright.train.metrics import Tell
from meshwright.train.rank import run_on_rank


def run_launched(place: Launched, patience: float, job: Callable[[], Job], tell: Tell) -> Outcome:
    """Join the others and run the job that rank 0 makes; `tell` hears what happens, on rank 0.

    Raises MeshwrightError, the same on every rank, for what a user can fix.
    """
    join_launched(place, patience)
    try:
        return run_on_rank(on_first(job), tell)
    finally:
        dist.destroy_process_group()
