"""Clusters in short."""

import pytest

from meshwright.cluster.shorthand import facts, parse_cluster
from meshwright.cluster.spec import Cluster
from meshwright.errors import UnknownNameError


def test_one_node() -> None:
    cluster = parse_cluster("8xh100")
    assert cluster.size == 8
    assert cluster.device_of(7).peak["bf16"] == 989.4e12
    assert cluster.route([0, 7]).link.bandwidth == 450e9


def test_nodes_meet_on_the_network_and_share_its_cards() -> None:
    cluster = parse_cluster("4x8xa100-80gb")
    assert cluster.size == 32
    inside, across = cluster.route([8, 15]), cluster.route([7, 8])
    assert (inside.link_name, inside.unit) == ("nvlink3", 1)
    assert (across.link_name, across.unit, across.cards) == ("ib-hdr200", 8, 8)


def test_unlike_pools_are_joined_by_the_slowest_link() -> None:
    cluster = parse_cluster("2x8xa100-80gb+1x4xv100")
    assert [pool.size for pool in cluster.pools] == [16, 4]
    assert cluster.pool_of(16).device == "v100"
    assert cluster.route([0, 16]).link_name == "ethernet-100"


def test_processes_on_fewer_cores_share_them() -> None:
    assert parse_cluster("cpu:4").pools[0].compute_units is None
    assert parse_cluster("cpu:4/2").pools[0].compute_units == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8xh1000", "'h1000' is no device that is known; did you mean 'h100'?"),
        ("h100", "'h100' is no cluster; write '8xh100'"),
        ("0xh100", "a cluster has at least one device"),
        ("cpu:0", "a cluster has at least one process and one core"),
        ("", "'' is no cluster"),
    ],
)
def test_what_is_no_cluster_says_what_would_be(text: str, said: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_cluster(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["8xh100", "4x8xa100-80gb", "cpu:4/2", "2x8xa100-80gb+4x8xv100"])
def test_a_cluster_reads_back(text: str) -> None:
    cluster = parse_cluster(text)
    assert Cluster.parse(cluster.to_yaml()) == cluster


def test_every_fact_has_a_source_and_a_date() -> None:
    for table in ("devices", "links", "nodes"):
        for name, entry in facts(table).items():
            assert all(entry[key] for key in ("source", "date")), f"{table}: {name}"
