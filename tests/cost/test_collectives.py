"""How long collectives take on the links of a cluster."""

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster, Device, Level, Link, Pool, Regions
from meshwright.cost.calibration import IDEAL, Calibration, LinkConstants, public_calibration
from meshwright.cost.collectives import TRAFFIC, Network, Way, seconds
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
        ("p2p", 1e-3 + 1),
    ],
)
def test_a_ring_takes_its_steps_and_its_bytes(kind: Kind, expected: float) -> None:
    assert seconds(kind, 1e9, 4, WAY) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("mebibytes", "busbw"), [(1, 18.0), (8, 109.93), (32, 138.49), (128, 176.92), (512, 222.72), (4096, 233.88)]
)
def test_eight_a100_sum_as_quickly_as_has_been_measured(mebibytes: int, busbw: float) -> None:
    """To a fifth, of whatever size: nccl-tests on 8 A100 (stas00/ml-engineering, network/README.md, GB/s of a bus)."""
    size, network = mebibytes * 2**20, Network(parse_cluster("1x8xa100-80gb"), public_calibration())
    measured = size * 2 * 7 / 8 / (busbw * 1e9)
    assert seconds("all_reduce", size, 8, network.way(range(8))) == pytest.approx(measured, rel=0.21)


def test_a_few_bytes_over_many_ranks_go_over_trees() -> None:
    assert seconds("all_reduce", 8, 1024, WAY) == pytest.approx(2 * (10 * 1e-3 + 8e-9))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_one_rank_has_nothing_to_send(kind: Kind) -> None:
    assert seconds(kind, 1e9, 1, WAY) == 0


@QUICK
@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange", "p2p"]),
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
        ((0, 1), Way(4e9, 1, around=1)),
        ((0, 2), Way(1e9, 10, around=10)),
        ((4, 5, 6, 7), Way(2e9, 10, around=(2 * 10 + 2 * 1) / 4)),
        ((0, 4), Way(0.25e9, 100, around=100)),
        (tuple(range(8)), Way(1e9, 100, around=(2 * 100 + 6 * 5.5) / 8)),
    ],
    ids=["node", "row", "all of a row", "rows", "all"],
)
def test_every_level_on_the_way_counts(ranks: tuple[int, ...], way: Way) -> None:
    """Of a ring's steps, one leaves each node, and one each row."""
    assert Network(three_levels()).way(ranks) == way


KINDS: tuple[Kind, ...] = get_args(Kind)


def nodes(count: int, cards: int, inside: float = 400e9, outside: float = 50e9) -> Network:
    """So many nodes of eight devices; no latency."""
    levels = (
        Level(name="node", size=8, link="inside"),
        Level(name="cluster", size=count, link="outside", cards=cards),
    )
    links = {"inside": Link(bandwidth=inside, latency=0), "outside": Link(bandwidth=outside, latency=0)}
    device = Device(memory=1e9, memory_bandwidth=1e9, peak={"fp32": 1e9})
    pool = Pool(name="p", device="d", levels=levels)
    return Network(Cluster(name="nodes", devices={"d": device}, links=links, pools=(pool,)))


def taken(network: Network, kind: Kind, size: float, ranks: Sequence[int]) -> float:
    """Seconds of a collective over these ranks."""
    return seconds(kind, size, len(ranks), network.way(ranks, TRAFFIC[kind]))


@pytest.mark.parametrize(
    ("count", "kind", "ranks", "size", "by_cards"),
    [
        # 8 of 16 GB leave the node from each of 8 devices: 64 GB over the cards.
        pytest.param(2, "all_to_all", range(16), 16e9, (1.28, 0.32, 0.16), id="all to all over two nodes"),
        # 24 of 32 GB: 192 GB over the cards.
        pytest.param(4, "all_to_all", range(32), 32e9, (3.84, 0.96, 0.48), id="all to all over four nodes"),
        # Half of 2 GB leaves; with seven pairs like this one, 8 GB over the cards.
        pytest.param(2, "all_to_all", (0, 8), 2e9, (0.16, 0.04, 0.02), id="all to all of a pair"),
        # All of it may be from elsewhere: 8 GB over the cards.
        pytest.param(2, "exchange", range(16), 1e9, (0.16, 0.04, 0.02), id="exchange over two nodes"),
        # One message leaves each node, and a device has one nearest card.
        pytest.param(2, "p2p", range(16), 1e9, (0.02, 0.02, 0.02), id="hops round two nodes"),
        pytest.param(4, "p2p", range(32), 1e9, (0.02, 0.02, 0.02), id="hops round four nodes"),
        # All eight devices of a node send out.
        pytest.param(2, "p2p", (0, 8), 1e9, (0.16, 0.04, 0.02), id="hops between two nodes"),
        # In this order every hop leaves its node.
        pytest.param(2, "p2p", (0, 8, 1, 9), 1e9, (0.16, 0.04, 0.02), id="hops to and back"),
        # Two members of each node, four such groups: two messages leave for each of them, or one.
        pytest.param(2, "p2p", (0, 1, 8, 9), 1e9, (0.08, 0.02, 0.02), id="hops of half"),
        # 15 of 16 GB in one stream, over all cards; with eight no faster than inside of a node.
        pytest.param(2, "all_gather", range(16), 16e9, (0.3, 0.075, 0.0375), id="a ring over two nodes"),
        pytest.param(4, "all_gather", range(32), 32e9, (0.62, 0.155, 0.0775), id="a ring over four nodes"),
        pytest.param(2, "all_gather", (0, 8), 2e9, (0.16, 0.04, 0.02), id="a ring of a pair"),
    ],
)
def test_what_leaves_a_node_shares_its_cards(
    count: int, kind: Kind, ranks: Sequence[int], size: float, by_cards: tuple[float, ...]
) -> None:
    found = [taken(nodes(count, cards), kind, size, ranks) for cards in (1, 4, 8)]
    assert found == pytest.approx(by_cards)


@st.composite
def spread(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Some devices of one node, and as many of two, in any order."""
    size = draw(st.integers(2, 8))
    first = draw(st.integers(1, size - 1))
    inside = draw(st.permutations(range(8)))[:size]
    across = [*draw(st.permutations(range(8)))[:first], *draw(st.permutations(range(8, 16)))[: size - first]]
    return inside, draw(st.permutations(across))


bandwidths = st.sampled_from([1e9, 5e9, 25e9, 400e9])
cards = st.integers(1, 16)


@QUICK
@given(kind=st.sampled_from(KINDS), groups=spread(), number=cards, inside=bandwidths, outside=bandwidths)
def test_a_group_over_two_nodes_never_beats_one_node(
    *, kind: Kind, groups: tuple[list[int], list[int]], number: int, inside: float, outside: float
) -> None:
    network = nodes(2, number, inside, outside)
    one, two = (taken(network, kind, 1e9, ranks) for ranks in groups)
    assert two >= one * (1 - 1e-12)


@QUICK
@given(
    kind=st.sampled_from(KINDS),
    ranks=st.lists(st.integers(0, 31), min_size=2, max_size=32, unique=True),
    numbers=st.tuples(cards, cards),
    outside=bandwidths,
)
def test_more_cards_are_never_slower(*, kind: Kind, ranks: list[int], numbers: tuple[int, int], outside: float) -> None:
    few, many = (nodes(4, number, outside=outside) for number in sorted(numbers))
    assert taken(many, kind, 1e9, ranks) <= taken(few, kind, 1e9, ranks) * (1 + 1e-12)


@QUICK
@given(
    kind=st.sampled_from(["p2p", "exchange"]),
    ranks=st.lists(st.integers(0, 31), min_size=2, max_size=32, unique=True),
    number=cards,
    outside=bandwidths,
)
def test_a_device_alone_sends_no_faster_than_its_own_links(
    *, kind: Kind, ranks: list[int], number: int, outside: float
) -> None:
    found = nodes(4, number, outside=outside).way(ranks, TRAFFIC[kind]).bandwidth
    crosses = len({rank // 8 for rank in ranks}) > 1
    assert found <= min(400e9, outside * max(1, number / 8) if crosses else 400e9)


def test_hops_go_over_single_lines_where_there_is_no_switch() -> None:
    """A ring through an MI300X node has all seven lines of each device, a hop the one that leads to the next."""
    network = Network(parse_cluster("8xmi300x"))
    assert network.way(range(8)).bandwidth == 448e9
    assert network.way(range(8), "hop").bandwidth == 64e9


@pytest.mark.parametrize(
    ("pairs", "gigabytes_per_s"),
    [
        pytest.param([(rank, 8 + rank) for rank in range(8)], (6.25, 25, 50), id="all of a node: a share of the cards"),
        pytest.param([(7, 8)], (50, 50, 50), id="the last of a node alone: one card"),
        pytest.param([(6, 8), (7, 9)], (25, 50, 50), id="two of a node"),
        pytest.param([(rank, 8) for rank in range(8)], (50, 50, 50), id="eight feed one, which has one card"),
        pytest.param([(0, rank) for rank in range(8, 16)], (50, 50, 50), id="one feeds eight"),
        pytest.param([(rank, 4 + rank) for rank in range(4)], (400, 400, 400), id="inside of a node"),
        pytest.param([(rank, 6 + rank) for rank in range(6)], (12.5, 50, 50), id="some of them outside"),
    ],
)
def test_a_cut_between_groups_counts_what_really_leaves_a_node(
    pairs: list[tuple[int, int]], gigabytes_per_s: tuple[float, ...]
) -> None:
    found = [nodes(2, number).crossing(pairs).bandwidth / 1e9 for number in (1, 4, 8)]
    assert found == pytest.approx(gigabytes_per_s)


@QUICK
@given(first=st.integers(1, 12), second=st.integers(1, 12), numbers=st.tuples(cards, cards))
def test_a_cut_is_never_slower_over_more_cards_nor_faster_than_its_devices(
    *, first: int, second: int, numbers: tuple[int, int]
) -> None:
    larger = max(first, second)
    pairs = [(at * first // larger, 16 + at * second // larger) for at in range(larger)]
    few, many = (nodes(4, number, outside=10e9).crossing(pairs).bandwidth for number in sorted(numbers))
    assert few <= many <= 400e9
    assert many <= 10e9 * max(1, max(numbers) / 8)


def test_each_way_between_regions_has_its_own_rate() -> None:
    ranks = [(0, 8)]
    back = [(receiver, sender) for sender, receiver in ranks]
    network = Network(apart())
    assert (network.crossing(ranks), network.crossing(back)) == (Way(1e9, 0.04), Way(2e9, 0.05))


def apart() -> Cluster:
    """Two regions of a node each; the way there is slower than the way back."""
    link, device = Link(bandwidth=10e9, latency=0), Device(memory=1e9, memory_bandwidth=1e9, peak={"fp32": 1e9})
    levels = (Level(name="node", size=8, link="inside"),)
    pools = tuple(Pool(name=name, device="d", region=name, levels=levels) for name in ("here", "there"))
    regions = Regions(
        names=("here", "there"), bandwidth=((None, 1e9), (2e9, None)), latency=((None, 0.04), (0.05, None))
    )
    return Cluster(name="apart", devices={"d": device}, links={"inside": link}, pools=pools, regions=regions)


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
    assert Network(parse_cluster("4x8xh100")).latency(range(32)) == 9.6e-6
    assert Network(parse_cluster("8xh100+8xa100-80gb+8xv100")).latency(range(24)) == 30e-6


def test_a_switch_that_adds_up_is_used_where_the_calibration_says_so() -> None:
    """(n + 1) / n of the bytes instead of 2 (n - 1) / n, inside of one node alone."""
    cluster = parse_cluster("2x8xh100")
    used = Calibration(name="nvls", source="test", links={"nvlink4": LinkConstants(in_switch=True)})
    plain, switch = Network(cluster, IDEAL), Network(cluster, used)
    inside, across = tuple(range(8)), tuple(range(16))
    size = 1e9
    times = [seconds("all_reduce", size, 8, network.way(inside)) for network in (plain, switch)]
    bandwidth = cluster.links["nvlink4"].bandwidth
    assert times[0] == pytest.approx(2 * 7 / 8 * size / bandwidth, rel=0.03)
    assert times[1] == pytest.approx(9 / 8 * size / bandwidth, rel=0.01)
    assert plain.way(across) == switch.way(across)
