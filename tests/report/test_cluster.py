"""A cluster's report: numbers in base units as data, with units for a person."""

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.report.cluster import cluster_blocks, cluster_data
from meshwright.report.plain import plain_text
from tests.broken import CLUSTER


def test_data_are_in_bytes_seconds_and_flop_per_second() -> None:
    data = cluster_data(resolve_cluster("4x8xa100-80gb"))
    assert data["size"] == 32
    assert data["devices"]["a100-80gb"]["memory"] == 80e9
    assert data["devices"]["a100-80gb"]["peak"]["bf16"] == 312e12
    assert data["links"]["nvlink3"] | {"source": "", "date": ""} == {
        "bandwidth": 300e9,
        "latency": 5e-6,
        "reduces": False,
        "source": "",
        "date": "",
    }
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
