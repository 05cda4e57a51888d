"""A cluster's report: numbers in base units as data, with units for a person."""

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.report.cluster import cluster_blocks, cluster_data
from meshwright.report.plain import plain_text
from tests.broken import CLUSTER
from tests.cluster.test_spec import WORLD


def test_data_are_in_bytes_seconds_and_flop_per_second() -> None:
    data = cluster_data(resolve_cluster("4x8xa100-80gb"))
    assert data["size"] == 32
    assert data["devices"]["a100-80gb"]["memory"] == 80 * 2**30
    assert data["devices"]["a100-80gb"]["peak"]["bf16"] == 312e12
    assert data["links"]["nvlink3"] | {"source": "", "date": "", "origins": {}} == {
        "bandwidth": 300e9,
        "latency": 3.4e-6,
        "reduces": False,
        "lines": None,
        "source": "",
        "date": "",
        "origins": {},
    }
    assert data["pools"][0]["host"]["memory"] == 2**41
    assert data["price_per_hour"] == 32 * data["pools"][0]["price_per_device_hour"]
    assert [level["size"] for level in data["pools"][0]["levels"]] == [8, 4]


def test_every_pool_link_peak_and_source_is_shown() -> None:
    text = plain_text(cluster_blocks(Cluster.parse(CLUSTER)))
    for word in (
        "ours",
        "36",
        "0-31",
        "32-35",
        "450 GB/s each way",
        "989 TFLOP/s",
        "a data sheet",
        "one + two",
        "4 for each unit below",
    ):
        assert word in text
    assert "all on 2 devices' worth of computing" in text


def test_processes_on_fewer_cores_are_said_to_share_them() -> None:
    assert "all on 2 devices' worth of computing" in plain_text(cluster_blocks(resolve_cluster("cpu:4/2")))
    assert "worth of computing" not in plain_text(cluster_blocks(resolve_cluster("cpu:4")))


def test_hosts_prices_units_clocks_and_origins_are_shown() -> None:
    text = plain_text(cluster_blocks(resolve_cluster("2x8xh100")))
    for word in (
        "47.20 USD an hour",
        "2 TiB",
        "614 GB/s",
        "pcie5",
        "1,830 MHz",
        "fp8 8,192",
        "reduces in the switch",
        "nvidia-smi's memory.total",
        "2026-05",
    ):
        assert word in text


def test_regions_are_shown_as_a_matrix() -> None:
    cluster = Cluster.parse(WORLD)
    text = plain_text(cluster_blocks(cluster))
    assert "to eu" in text
    assert "125 MB/s, 40 ms" in text
    assert "250 MB/s, 45 ms" in text
    assert cluster_data(cluster)["regions"]["bandwidth"][0] == [None, 125e6, 62.5e6]


def test_a_cluster_with_an_unknown_price_has_no_price() -> None:
    assert cluster_data(resolve_cluster("8xh100+8xh20"))["price_per_hour"] is None
