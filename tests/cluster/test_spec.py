"""Routes through levels, pools and regions, and what a cluster may not say."""

import pytest

from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster, Route
from meshwright.errors import DocumentError

HEAD = """meshwright_cluster: 1
name: ours
devices: {d: {memory: 1 GiB, memory_bandwidth: 1 GB/s, peak: {fp32: 1 GFLOP/s}}}
links: {inside: {bandwidth: 10 GB/s, latency: 1 us}, lan: {bandwidth: 1 GB/s, latency: 50 us}}
"""
WORLD = (
    HEAD
    + """pools:
  - name: us-a
    device: d
    region: us
    levels: [{name: node, size: 8, link: inside}, {name: cluster, size: 2, link: lan}]
  - {name: us-b, device: d, region: us, levels: [{name: node, size: 4, link: inside}]}
  - name: eu
    device: d
    region: eu
    levels: [{name: node, size: 4, link: inside}, {name: cluster, size: 4, link: lan}]
  - {name: asia, device: d, region: asia, levels: [{name: node, size: 8, link: inside}]}
across: [{between: [us-a, us-b], link: lan, cards: 2}]
regions:
  names: [us, eu, asia]
  bandwidth:
    - [null, 1 Gbit/s, 500 Mbit/s]
    - [2 Gbit/s, null, 300 Mbit/s]
    - [400 Mbit/s, 300 Mbit/s, null]
  latency:
    - [null, 40 ms, 80 ms]
    - [45 ms, null, 120 ms]
    - [90 ms, 120 ms, null]
  source: a matrix that we made up for this test
  date: 2026-11
"""
)
US_A, US_B, EU, ASIA = 0, 16, 20, 36


def world() -> Cluster:
    return Cluster.parse(WORLD)


def seen(route: Route) -> tuple[str, float, int | None, int]:
    return route.link_name, route.link.bandwidth, route.cards, route.unit


def test_nvl72_crosses_nodes_by_nvlink_and_domains_by_the_network() -> None:
    cluster = parse_cluster("2x72xgb200")
    assert seen(cluster.route([0, 3])) == ("nvlink5", 900e9, None, 1)
    assert seen(cluster.route([0, 4])) == ("nvlink5", 900e9, None, 4)
    assert seen(cluster.route([0, 71])) == ("nvlink5", 900e9, None, 4)
    assert seen(cluster.route(list(range(72)))) == ("nvlink5", 900e9, None, 4)
    assert seen(cluster.route([71, 72])) == ("ib-ndr400", 50e9, 72, 72)
    assert seen(cluster.route(list(range(144)))) == ("ib-ndr400", 50e9, 72, 72)
    assert seen(cluster.route([73, 140])) == ("nvlink5", 900e9, None, 4)


def test_members_without_a_switch_have_as_many_lines_as_peers() -> None:
    cluster = parse_cluster("2x8xmi300x")
    assert cluster.route([0, 1]).link.bandwidth == pytest.approx(64e9)
    assert cluster.route([0, 3, 5]).link.bandwidth == pytest.approx(128e9)
    assert cluster.route(list(range(8))).link.bandwidth == 448e9


def test_a_way_between_regions_has_its_own_rate_and_delay_in_each_direction() -> None:
    there, back = world().route([US_A, EU], one_way=True), world().route([EU, US_A], one_way=True)
    assert (there.link_name, there.link.bandwidth, there.link.latency) == ("us > eu", 125e6, 0.040)
    assert (back.link_name, back.link.bandwidth, back.link.latency) == ("eu > us", 250e6, 0.045)
    assert "made up" in there.link.source


def test_what_goes_both_ways_goes_as_the_worse_one() -> None:
    for ranks in ([US_A, EU], [EU, US_A]):
        both = world().route(ranks)
        assert (both.link.bandwidth, both.link.latency) == (125e6, 0.045)


def test_the_slowest_pair_decides_for_many_regions() -> None:
    everywhere = world().route([US_A, EU, ASIA])
    assert (everywhere.link.bandwidth, everywhere.link.latency) == (37.5e6, 0.120)


def test_pools_of_one_region_keep_their_own_link() -> None:
    assert seen(world().route([US_A, US_B])) == ("lan", 1e9, 2, 8)


def test_a_larger_node_gets_no_second_set_of_cards() -> None:
    assert world().route([US_B, US_A]).unit == 8
    assert world().route([EU, US_B]).unit == 4


def test_all_nodes_of_a_region_may_share_a_way() -> None:
    shared = Cluster.parse(WORLD + "  shared: true\n")
    assert seen(shared.route([US_A, EU])) == ("us > eu", 125e6, 1, 16)
    assert seen(world().route([US_A, EU])) == ("us > eu", 125e6, 1, 8)


def test_the_diagonal_joins_pools_of_one_region() -> None:
    text = WORLD.replace("across: [{between: [us-a, us-b], link: lan, cards: 2}]\n", "")
    text = text.replace("[null, 1 Gbit/s", "[9 Gbit/s, 1 Gbit/s").replace("[null, 40 ms", "[2 ms, 40 ms")
    route = Cluster.parse(text).route([US_A, US_B])
    assert (route.link_name, route.link.bandwidth, route.link.latency) == ("us > us", 1.125e9, 0.002)


def test_regions_read_back_equal() -> None:
    assert Cluster.parse(world().to_yaml()) == world()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("region: asia", "region: mars"), "no region is called 'mars'"),
        (("names: [us, eu, asia]", "names: [us, eu, us]"), "two regions have one name"),
        (("[null, 1 Gbit/s, 500 Mbit/s]", "[null, 1 Gbit/s]"), "3 regions need 3 rows of 3"),
        (("[null, 40 ms, 80 ms]", "[null, null, 80 ms]"), "'us' to 'eu' has no latency"),
        (("1 Gbit/s, 500 Mbit/s", "null, 500 Mbit/s"), "'us' to 'eu' has no bandwidth"),
        (("[null, 1 Gbit/s", "[9 Gbit/s, 1 Gbit/s"), "'us' to 'us' has no latency"),
        (("between: [us-a, us-b]", "between: [us-a, eu]"), "'us-a and eu' are joined by 'regions' too"),
        (("between: [us-a, us-b]", "between: [us-a, us-a]"), "'us-a' needs no link to itself"),
        (
            ("cards: 2}]", "cards: 2}, {between: [us-b, us-a], link: inside}]"),
            "two links join one pair of pools",
        ),
        (("across: [{between: [us-a, us-b], link: lan, cards: 2}]\n", ""), "'us-a' and 'us-b' have no link between"),
        (("    region: eu\n", ""), "'us-a' and 'eu' have no link between"),
    ],
)
def test_regions_that_join_too_little_or_too_much_are_refused(change: tuple[str, str], said: str) -> None:
    assert change[0] in WORLD
    with pytest.raises(DocumentError) as refused:
        Cluster.parse(WORLD.replace(*change, 1))
    assert said in str(refused.value)


def test_a_host_needs_a_link_that_is_known() -> None:
    levels = "levels: [{name: node, size: 8, link: inside}]"
    text = HEAD + f"pools: [{{name: p, device: d, {levels}, host: {{memory: 1 TiB, link: lan}}}}]\n"
    assert Cluster.parse(text).pools[0].host is not None
    with pytest.raises(DocumentError, match="no link is called 'pcie9'"):
        Cluster.parse(text.replace("link: lan}}]", "link: pcie9}}]"))
