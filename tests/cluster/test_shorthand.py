"""Clusters in short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster import facts
from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import MAX_DEVICES, Cluster
from meshwright.errors import MeshwrightError, UnknownNameError

KINDS = list(facts.table("nodes"))
SHORT_LINKS = list(facts.table("names")["links"])


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
    ("text", "link", "cards"),
    [
        ("16x8xh100:ib400", "ib-ndr400", 8),
        ("4x8xh100:2xib200", "ib-hdr200", 2),
        ("4x8xa100-80gb:eth100", "ethernet-100", 1),
        ("4x8xa100-80gb:4xeth100", "ethernet-100", 4),
        ("4x8xh100:efa400", "efa-400", 8),
        ("4x8xh100:roce400", "roce-400", 8),
        ("4x2xh100:ib-ndr400", "ib-ndr400", 2),
        ("4x8xh100:infinity-fabric3", "infinity-fabric3", 8),
    ],
)
def test_the_link_out_of_a_node_can_be_named(text: str, link: str, cards: int) -> None:
    level = parse_cluster(text).pools[0].levels[-1]
    assert (level.link, level.cards) == (link, cards)


def test_pools_that_name_one_link_are_joined_by_it() -> None:
    (across,) = parse_cluster("2x8xh100:ib400+2x8xa100-80gb:4xib400").across
    assert (across.link, across.cards) == ("ib-ndr400", 4)
    (across,) = parse_cluster("2x8xh100:ib400+2x8xa100-80gb").across
    assert (across.link, across.cards) == ("ethernet-100", 1)


def test_other_names_and_capitals_make_the_same_cluster() -> None:
    clusters = [parse_cluster(text) for text in ("2x8xh100", "2x8xH100-SXM", "2x8xh100-80gb:ib400", "2x8xh100:8xib400")]
    assert len({cluster.fingerprint for cluster in clusters}) == 1
    assert {name for cluster in clusters for name in cluster.devices} == {"h100"}


def test_a_price_changes_no_fingerprint() -> None:
    cluster = parse_cluster("2x8xh100")
    pool = cluster.pools[0].model_copy(update={"price_per_device_hour": 1.0, "price_date": "2030-01"})
    assert cluster.model_copy(update={"pools": (pool,)}).fingerprint == cluster.fingerprint


def test_prices_come_with_the_pool() -> None:
    pool = parse_cluster("2x8xh100").pools[0]
    price = facts.node("h100").price
    assert price is not None
    assert pool.price_per_device_hour == price.per_device_hour == 2.95
    assert (pool.price_source, pool.price_date) == (price.source, price.date)
    assert parse_cluster("8xgb300").pools[0].price_per_device_hour is None


def test_hosts_come_with_the_pool_whole_or_in_part() -> None:
    whole, half = (parse_cluster(text).pools[0].host for text in ("8xa100-80gb", "2x4xa100-80gb"))
    assert whole is not None
    assert half is not None
    assert (whole.memory, whole.cards, whole.link) == (2**41, 4, "pcie4")
    assert (half.memory, half.cards, half.memory_bandwidth) == (2**40, 2, 204.8e9)
    assert parse_cluster("8xh20").pools[0].host is None


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4xgb200", [4]),
        ("8xgb200", [4, 2]),
        ("72xgb200", [4, 18]),
        ("18x4xgb200", [4, 18]),
        ("2x72xgb200", [4, 18, 2]),
        ("36x4xgb200", [4, 18, 2]),
        ("20x4xgb200", [4, 10, 2]),
        ("4x36xgb300", [4, 9, 4]),
        ("2x2xgb200", [2, 2]),
        ("256xtpu-v5e", [8, 32]),
        ("2x256xtpu-v6e", [8, 32, 2]),
        ("16x4xtpu-v4", [4, 16]),
    ],
)
def test_domains_of_a_link_can_be_wider_than_a_node(text: str, sizes: list[int]) -> None:
    assert [level.size for level in parse_cluster(text).pools[0].levels] == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8xh1000", "'h1000' is no device that is known; did you mean 'h100'?"),
        ("8xa100", "'a100' can be several devices: say a100-40gb or a100-80gb"),
        ("h100", "'h100' is no cluster; write '8xh100'"),
        ("0xh100", "a cluster has at least one device"),
        ("cpu:0", "a cluster has at least one process and one core"),
        ("", "'' is no cluster"),
        ("4x8xh100:ib500", "'ib500' is no link that is known; known: ib100, ib200, ib400"),
        ("4x8xh100:0xib400", "a node has at least one card"),
        ("4x8xh100:", "is no cluster"),
        ("73xgb200", "its link joins 72 at most: take 72"),
        ("7xgb200", "nodes of gb200 have 4 devices, and its link joins 72 at most: take 8"),
        ("19x4xgb200", "more than half full; take 18"),
        ("9999999x8xh100", "more devices than can be planned for"),
    ],
)
def test_what_is_no_cluster_says_what_would_be(text: str, said: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_cluster(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["8x", "4x2x"])
def test_every_known_device_makes_a_cluster_that_reads_back(kind: str, shape: str) -> None:
    cluster = parse_cluster(shape + kind)
    assert cluster.size == 8
    assert Cluster.parse(cluster.to_yaml()) == cluster


pieces = st.sampled_from(["8", "4x", "x", "72", ":", "+", "cpu:", "/", "local", "gb200", *KINDS[:6], *SHORT_LINKS[:4]])
texts = st.text(max_size=30) | st.lists(pieces, max_size=8).map("".join)


@given(text=texts)
def test_any_text_is_a_cluster_or_one_of_our_errors(text: str) -> None:
    try:
        size = parse_cluster(text).size
    except MeshwrightError:
        return
    assert 1 <= size <= MAX_DEVICES


@st.composite
def terms(draw: st.DrawFn) -> str:
    """A term that means something: whole domains or nodes of any known device, on any known link."""
    kind = draw(st.sampled_from(KINDS))
    nodes, devices = draw(st.integers(1, 16)), draw(st.sampled_from((1, 2, 4)))
    link = draw(st.sampled_from(("", *(f":{cards}{name}" for cards in ("", "2x") for name in SHORT_LINKS))))
    return f"{nodes}x{devices}x{kind}{link}"


@given(parts=st.lists(terms(), min_size=1, max_size=4))
def test_what_the_shorthand_makes_reads_back_equal(parts: list[str]) -> None:
    cluster = parse_cluster("+".join(parts))
    again = Cluster.parse(cluster.to_yaml())
    assert again == cluster
    assert again.fingerprint == cluster.fingerprint
    assert len(cluster.pools) == len(parts)
