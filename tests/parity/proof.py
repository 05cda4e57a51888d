"""A case of the array proven: the one process once for all cases of a model, ranks from pools that stay."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Self

import torch

from meshwright.train.launch import WorkerPool, preload
from tests.parity.array import HER_NETWORK
from tests.parity.harness import Case, build, many_processes
from tests.parity.models import spec_of
from tests.parity.verdict import judge_all

RUNS = 12
"""Cases that a pool's ranks run before others take their place."""


@dataclass(frozen=True)
class Proven:
    """What came of a case."""

    holds: bool
    error: float
    """The largest difference of all quantities and ranks, as a share."""
    says: str


class Pools:
    """Forked ranks by their number, made when first wanted. Leave the `with` block to end them."""

    def __init__(self) -> None:
        preload()
        self._pools: dict[int, WorkerPool] = {}
        self._runs = Counter[int]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools.values():
            pool.close()

    def of(self, size: int) -> WorkerPool:
        """So many ranks; new ones now and then, since each run leaves its process groups."""
        if size in self._pools and self._runs[size] % RUNS == 0:
            self._pools.pop(size).close()
        if size not in self._pools:
            self._pools[size] = WorkerPool(size, group_timeout=60.0)
        self._runs[size] += 1
        return self._pools[size]


def prove_case(pools: Pools, case: Case, timeout: float = 120.0) -> Proven:
    """Run a case on its ranks and judge each."""
    exact = case.dtype == torch.float64 and case.family != HER_NETWORK
    count = 2 if exact else case.micro_batches  # which change orders of summation alone
    found = pools.of(case.world_size).run(many_processes, case, model=spec_of(build(case)), timeout=timeout)
    verdicts = judge_all(replace(case, micro_batches=count), found)
    errors = [max(each.loss, each.norm, each.gradient[0], each.parameter[0]) for each in verdicts]
    red = next((str(each) for each in verdicts if not each.holds), "")
    return Proven(not red, max(errors), red)
