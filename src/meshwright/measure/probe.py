"""What this machine really does, measured in seconds: a Cluster of CPU processes for predictions to start from.

All processes measure at the same time, as they will train, so that what they take from each other is in the figures.
"""

import datetime as dt
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from meshwright.cluster.spec import Cluster, Device, Level, Link, Pool
from meshwright.train.launch import WorkerPool

_REPEATS = 7
_SMALL, _LARGE = 2**12, 2**22


def probe(pool: WorkerPool) -> Cluster:
    """The pool's processes as a cluster: rates of one process while all of them work, and gloo's latency and
    bandwidth.
    """
    figures = pool.run(_measure, timeout=120.0)
    world, cores = pool.size, len(os.sched_getaffinity(0))
    share = world / cores if cores < world else 1.0
    median = {name: statistics.median(rank[name] for rank in figures) for name in figures[0]}
    source = f"measured on {platform.node()} ({platform.machine()}, {cores} cores), {world} processes at once"
    device = Device(
        memory=float(int(_memory() / world)),
        memory_bandwidth=_rounded(median["memory_bandwidth"] * share),
        peak={"fp32": _rounded(median["fp32"] * share), "fp64": _rounded(median["fp64"] * share)},
        backend="gloo",
        source=source,
        date=dt.date.today().isoformat(),
    )
    link = _link(median, world).model_copy(update={"source": source, "date": device.date})
    pool_ = Pool(
        name="cpu",
        device="cpu",
        levels=(Level(name="machine", size=world, link="gloo"),),
        compute_units=float(cores) if cores < world else None,
    )
    return Cluster(name=f"local:{world}", devices={"cpu": device}, links={"gloo": link}, pools=(pool_,))


def _link(median: dict[str, float], world: int) -> Link:
    """From two all-reduces, by the ring's formula: 2(n-1) steps, and 2(n-1)/n of the bytes through each rank."""
    if world == 1:
        return Link(bandwidth=median["memory_bandwidth"], latency=0.0)
    moved = 2 * (world - 1) / world * _LARGE
    seconds = max(median["large"] - median["small"], 1e-9)
    return Link(bandwidth=_rounded(moved / seconds), latency=_rounded(median["small"] / (2 * (world - 1))))


def _rounded(value: float) -> float:
    """Three digits: more would be noise."""
    return float(f"{value:.3g}")


def _memory() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _measure() -> dict[str, float]:
    """On every rank, at the same time."""
    figures = {name: _matmul_rate(dtype) for name, dtype in (("fp32", torch.float32), ("fp64", torch.float64))}
    figures["memory_bandwidth"] = _memory_rate()
    figures["small"], figures["large"] = (_all_reduce(size) for size in (_SMALL, _LARGE))
    return figures


def _matmul_rate(dtype: torch.dtype, size: int = 384) -> float:
    a, b = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
    return 2.0 * size**3 / _together(lambda: torch.mm(a, b), calls=8)


def _memory_rate(size: int = 2**22) -> float:
    a, b = torch.randn(size), torch.randn(size)
    return 3.0 * a.nbytes / _together(lambda: torch.add(a, b, out=b), calls=2)


def _all_reduce(size: int) -> float:
    tensor = torch.zeros(size // 4)
    return _together(lambda: dist.all_reduce(tensor), calls=2)


def _together(work: Callable[[], Any], *, calls: int) -> float:
    """Median seconds of one call, all ranks starting at once."""
    work()
    times = []
    for _ in range(_REPEATS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)
