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

from meshwright.cluster.local import usable_cores
from meshwright.cluster.spec import Cluster, Device, Level, Link, Pool
from meshwright.cost.collectives import Way, seconds
from meshwright.train.launch import WorkerPool

_REPEATS = 7
_SMALL, _LARGE = 2**12, 2**22
_FASTEST = 1e15  # bytes per second: what a link is said to do that takes no longer for more bytes
_HALVINGS = 60


def probe(pool: WorkerPool) -> Cluster:
    """The pool's processes as a cluster: rates of one process while all of them work, and gloo's latency and
    bandwidth.
    """
    figures = pool.run(_measure, timeout=120.0)
    world, cores = pool.size, usable_cores()
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
    way = fit_way(median["small"], median["large"], world) if world > 1 else Way(median["memory_bandwidth"], 0.0)
    link = Link(
        bandwidth=_rounded(way.bandwidth),
        latency=_rounded(way.latency),
        source=source,
        date=dt.date.today().isoformat(),
    )
    pool_ = Pool(
        name="cpu",
        device="cpu",
        levels=(Level(name="machine", size=world, link="gloo"),),
        compute_units=float(cores) if cores < world else None,
    )
    return Cluster(name=f"local:{world}", devices={"cpu": device}, links={"gloo": link}, pools=(pool_,))


def fit_way(small: float, large: float, world: int) -> Way:
    """The bandwidth and latency with which an estimate gives these seconds to all-reduces of 4 KiB and 4 MiB.

    The estimate's own function is inverted, whichever algorithm it takes for a size. Times that no latency and
    bandwidth give, as noise makes them, end at no latency or at the fastest link.
    """

    def taken(size: int, latency: float, bandwidth: float) -> float:
        return seconds("all_reduce", size, world, Way(bandwidth=bandwidth, latency=latency))

    def bandwidth(latency: float) -> float:
        per_byte = _reaches(large, lambda each: taken(_LARGE, latency, 1 / each), 1 / _FASTEST, large / _LARGE)
        return 1 / per_byte

    latency = _reaches(small, lambda each: taken(_SMALL, each, bandwidth(each)), 0.0, small)
    return Way(bandwidth=bandwidth(latency), latency=latency)


def _reaches(wanted: float, rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function reaches a value; the end that comes nearest where it does so outside of the two."""
    high = max(low, high)
    if rising(low) >= wanted:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high


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
