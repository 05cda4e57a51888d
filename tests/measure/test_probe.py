"""The measured machine: figures that give back, in an estimate, the times that were measured."""

import pytest

from meshwright.cost.collectives import Network, Way, seconds
from meshwright.measure import probe as probing
from meshwright.measure.probe import fit_way, probe
from meshwright.train.launch import WorkerPool

SMALL, LARGE = 2**12, 2**22


@pytest.mark.parametrize("world", [2, 3, 4, 8, 17, 64, 512])
@pytest.mark.parametrize(("latency", "bandwidth"), [(1e-6, 400e9), (30e-6, 2e9), (2e-3, 50e6)])
def test_the_fitted_way_gives_the_times_that_were_measured(world: int, latency: float, bandwidth: float) -> None:
    """Also where the estimate takes trees for few bytes, or for all."""
    true = Way(bandwidth=bandwidth, latency=latency)
    small, large = (seconds("all_reduce", size, world, true) for size in (SMALL, LARGE))
    found = fit_way(small, large, world)
    assert seconds("all_reduce", SMALL, world, found) == pytest.approx(small, rel=1e-6)
    assert seconds("all_reduce", LARGE, world, found) == pytest.approx(large, rel=1e-6)
    assert found[:2] == pytest.approx(true[:2], rel=1e-4)


def test_noise_that_no_link_explains_still_gives_one() -> None:
    faster_for_more = fit_way(2e-3, 1e-3, 4)
    assert (faster_for_more.bandwidth, faster_for_more.latency > 0) == (pytest.approx(1e15), True)
    no_time_to_start = fit_way(1e-9, 1e-2, 4)
    assert no_time_to_start.latency == 0.0
    assert seconds("all_reduce", LARGE, 4, no_time_to_start) == pytest.approx(1e-2)


class _Measured(WorkerPool):
    """A pool whose ranks measured what is written here."""

    def __init__(self, *figures: dict[str, float]) -> None:
        self.size, self.figures = len(figures), list(figures)

    def run(self, *_: object, **__: object) -> list[dict[str, float]]:  # type: ignore[override]
        return self.figures


RANK = {"fp32": 1.0e11, "fp64": 5e10, "memory_bandwidth": 8e9, "small": 2e-4, "large": 1.2e-2}


def test_a_machine_is_the_median_of_its_ranks_and_estimates_give_its_times_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "usable_cores", lambda: 2)
    cluster = probe(_Measured(RANK, RANK | {"fp32": 9e12}, RANK, RANK))
    device = cluster.devices["cpu"]
    assert device.peak == {"fp32": 2e11, "fp64": 1e11}  # of a core: four ranks shared two
    assert (device.memory_bandwidth, cluster.pools[0].compute_units, cluster.size) == (1.6e10, 2.0, 4)
    assert "2 cores), 4 processes at once" in device.source
    way = Network(cluster).way(range(4))
    assert seconds("all_reduce", LARGE, 4, way) == pytest.approx(1.2e-2, rel=0.01)
    assert seconds("all_reduce", SMALL, 4, way) == pytest.approx(2e-4, rel=0.01)


def test_one_process_has_its_memory_for_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "usable_cores", lambda: 2)
    cluster = probe(_Measured(RANK))
    assert (cluster.links["gloo"].bandwidth, cluster.links["gloo"].latency) == (8e9, 0.0)
    assert cluster.pools[0].compute_units is None


def test_a_real_pool_is_measured(pool: WorkerPool) -> None:
    cluster = probe(pool)
    assert cluster.size == 4
    assert 1e8 < cluster.devices["cpu"].peak["fp32"] < 1e14
    assert cluster.links["gloo"].bandwidth > 1e6
    assert cluster.links["gloo"].latency < 1.0
