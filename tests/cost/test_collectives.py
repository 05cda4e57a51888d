"""How long collectives take on the links of a cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster, Device, Level, Link, Pool
from meshwright.cost.collectives import Network, Way, seconds
from meshwright.cost.flows import Kind
from tests.cost.build import QUICK

WAY = Way(bandwidth=1e9, latency=1e-3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_reduce", 2 * (3 * 1e-3 + 3 / 4)),
        ("all_gather", 3 * 1e-3 + 3 / 4),
        ("reduce_scatter", 3 * 1e-3 + 3 / 4),
        ("all_to_all", 3 * 1e-3 + 3 / 4),
        ("exchange", 3 * 1e-3 + 1),
        ("broadcast", 3 * 1e-3 + 1),
        ("p2p", 1e-3 + 1),
    ],
)
def test_a_ring_takes_its_steps_and_its_bytes(kind: Kind, expected: float) -> None:
    assert seconds(kind, 1e9, 4, WAY) == pytest.approx(expected, rel=1e-12)


def test_a_few_bytes_over_many_ranks_go_over_trees() -> None:
    assert seconds("all_reduce", 8, 1024, WAY) == pytest.approx(2 * (10 * 1e-3 + 8e-9))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_one_rank_has_nothing_to_send(kind: Kind) -> None:
    assert seconds(kind, 1e9, 1, WAY) == 0


@QUICK
@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange", "broadcast", "p2p"]),
    size=st.floats(0, 1e12),
    ranks=st.integers(2, 4096),
    bandwidth=st.floats(1e6, 1e12),
    latency=st.floats(0, 1e-2),
    faster=st.floats(1, 100),
)
def test_a_faster_link_is_never_slower(
    *, kind: Kind, size: float, ranks: int, bandwidth: float, latency: float, faster: float
) -> None:
    before = seconds(kind, size, ranks, Way(bandwidth, latency))
    assert seconds(kind, size, ranks, Way(bandwidth * faster, latency)) <= before
    assert seconds(kind, size, ranks, Way(bandwidth, latency / faster)) <= before


@pytest.mark.parametrize(
    ("cluster", "ranks", "gigabytes_per_s"),
    [
        pytest.param("4x8xh100", range(8), 450, id="inside of a node: its own NVLink"),
        pytest.param("4x8xh100", (0, 8, 16, 24), 50, id="one device of each node: its share of the cards"),
        pytest.param("4x8xh100", range(16), 400, id="whole nodes: all cards"),
        pytest.param("4x8xh100", (0, 1, 8, 9), 100, id="two devices of each node: two cards"),
        pytest.param("4x8xh100", (0, 1, 2, 8), 50, id="the node with the fewest members decides"),
        pytest.param("2x8xv100", (0, 8), 6.25, id="four cards for eight devices"),
        pytest.param("2x8xv100", range(16), 50, id="four cards together"),
        pytest.param("8xh100", (3, 5), 450, id="a pair"),
        pytest.param("8xh100+8xa100-80gb", (0, 8), 12.5 / 8, id="between pools: one card for a node"),
        pytest.param("cpu:4", range(4), 1, id="loopback"),
    ],
)
def test_a_group_gets_its_share_of_the_links(cluster: str, ranks: range, gigabytes_per_s: float) -> None:
    assert Network(parse_cluster(cluster)).way(tuple(ranks)).bandwidth == gigabytes_per_s * 1e9


def three_levels() -> Cluster:
    """Two rows of two nodes of two devices, each level four times slower than the one inside of it."""
    levels = tuple(
        Level(name=name, size=2, link=name, cards=cards) for name, cards in (("a", None), ("b", 2), ("c", 4))
    )
    links = {name: Link(bandwidth=4e9 / 4**place, latency=10.0**place) for place, name in enumerate("abc")}
    device = Device(memory=1e9, memory_bandwidth=1e9, peak={"fp32": 1e9})
    return Cluster(name="three", devices={"d": device}, links=links, pools=(Pool(name="p", device="d", levels=levels),))


@pytest.mark.parametrize(
    ("ranks", "way"),
    [
        ((0, 1), Way(4e9, 1)),
        ((0, 2), Way(1e9, 10)),
        ((4, 5, 6, 7), Way(2e9, 10)),
        ((0, 4), Way(0.25e9, 100)),
        (tuple(range(8)), Way(1e9, 100)),
    ],
    ids=["node", "row", "all of a row", "rows", "all"],
)
def test_every_level_on_the_way_counts(ranks: tuple[int, ...], way: Way) -> None:
    assert Network(three_levels()).way(ranks) == way


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_group_over_two_nodes_never_beats_one_node(size: int) -> None:
    network = Network(parse_cluster("2x8xh100"))
    inside, across = tuple(range(size)), (*range(size // 2), *range(8, 8 + size // 2))
    for kind in ("all_reduce", "all_gather", "all_to_all"):
        assert seconds(kind, 1e9, size, network.way(across)) >= seconds(kind, 1e9, size, network.way(inside))  # type: ignore[arg-type]


def test_the_slowest_of_several_groups_decides() -> None:
    network = Network(parse_cluster("2x8xh100"))
    threes = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    assert network.slowest(threes) == network.way((6, 7, 8))
    assert network.slowest(threes[:2]) == network.way((0, 1, 2))


def test_groups_that_lie_alike_in_another_node_get_the_same() -> None:
    network = Network(parse_cluster("4x8xh100"))
    assert network.pattern((17, 18)) == (1, 2)
    assert network.pattern((15, 16)) == (7, 8)
    assert Network(three_levels()).pattern((6, 7)) == (2, 3)


def test_the_latency_of_a_number_that_all_add_up_is_that_of_the_widest_link() -> None:
    assert Network(parse_cluster("4x8xh100")).latency(range(32)) == 10e-6
    assert Network(parse_cluster("8xh100+8xa100-80gb+8xv100")).latency(range(24)) == 30e-6
