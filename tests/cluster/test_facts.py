"""The catalogue: every figure says where it is from, and peaks follow from units and clocks."""

import re

import pytest

from meshwright.cluster import facts
from meshwright.cluster.spec import Device, Facts, Host, Link
from meshwright.errors import UnknownNameError

DEVICES, LINKS, NODES = (list(facts.table(name)) for name in ("devices", "links", "nodes"))
NAMES = facts.table("names")
DATE = re.compile(r"20[0-9]{2}(-(0[1-9]|1[0-2]))?")
PROVENANCE = {"source", "date", "origins"}
# fmt: off
WANTED = {
    "v100", "v100-16gb", "v100-pcie", "v100-pcie-16gb", "a100-40gb", "a100-80gb", "a100-pcie-40gb",
    "a100-pcie-80gb", "a800", "h100", "h100-500w", "h100-pcie", "h100-nvl", "h200", "h800", "h20", "b200", "b300",
    "gb200", "gb300", "l4", "l40s", "t4", "a10g", "rtx-3090", "rtx-4090", "titan-rtx", "mi250x", "mi300x", "mi325x",
    "mi350x", "mi355x", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "cpu",
}
# fmt: on


def records() -> list[tuple[str, Facts]]:
    devices = [(f"device {name}", facts.device(name)) for name in DEVICES]
    links = [(f"link {name}", facts.link(name)) for name in LINKS]
    nodes = [(f"node {name}", facts.node(name)) for name in NODES]
    hosts = [(f"host of {name}", node.host) for name in NODES if (node := facts.node(name)).host]
    return [*devices, *links, *nodes, *hosts]


def figures(record: Facts) -> list[str]:
    return sorted(record.model_fields_set - PROVENANCE)


FIGURES = [
    pytest.param(record, field, id=f"{name}: {field}") for name, record in records() for field in figures(record)
]


def test_the_catalogue_holds_what_people_rent() -> None:
    assert set(DEVICES) >= WANTED
    assert len(FIGURES) > 400


@pytest.mark.parametrize(("record", "field"), FIGURES)
def test_every_figure_has_a_source_and_a_date(record: Facts, field: str) -> None:
    origin = record.origin(field)
    assert len(origin.source) > 10
    assert DATE.fullmatch(origin.date), origin.date


def test_every_price_has_a_source_and_a_date() -> None:
    prices = [price for name in NODES if (price := facts.node(name).price)]
    assert len(prices) >= 15
    for price in prices:
        assert len(price.source) > 10
        assert DATE.fullmatch(price.date)


ENGINES = [(name, engine) for name in DEVICES for engine in facts.device(name).engines]
DERIVED = [(name, dtype) for name, engine in ENGINES for dtype in engine.flops_per_clock]


def test_most_peaks_can_be_derived() -> None:
    given = sum(len(facts.device(name).peak) for name in DEVICES)
    assert len(set(DERIVED)) == len(DERIVED) > 0.7 * given


@pytest.mark.parametrize(("name", "dtype"), DERIVED)
def test_peaks_follow_from_units_and_clock(name: str, dtype: str) -> None:
    device = facts.device(name)
    engine = next(engine for engine in device.engines if dtype in engine.flops_per_clock)
    assert device.peak[dtype] == pytest.approx(engine.peak(dtype), rel=0.01)  # type: ignore[index, arg-type]


@pytest.mark.parametrize("name", DEVICES)
def test_narrower_numbers_are_never_slower(name: str) -> None:
    peak = facts.device(name).peak
    rates = [peak[dtype] for dtype in ("fp64", "fp32", "tf32", "bf16", "fp8", "fp4") if dtype in peak]
    assert rates == sorted(rates)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_described_as_its_kind_is(name: str) -> None:
    device = facts.device(name)
    assert device.backend == {"mi": "rccl", "tp": "xla", "cp": "gloo"}.get(name[:2], "nccl")
    assert 4e9 <= device.memory <= 400 * 2**30
    assert {"fp16", "bf16"} & set(device.peak)


def test_memory_is_what_drivers_report_not_what_the_name_says() -> None:
    reported = {name: facts.device(name).memory / 2**20 for name in ("h100", "a100-80gb", "v100", "h200")}
    assert reported == {"h100": 81559, "a100-80gb": 81920, "v100": 32768, "h200": 143771}
    assert all(facts.device(name).memory > 80e9 for name in ("h100", "a100-80gb", "a800", "h800"))


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_made_of_what_is_known(name: str) -> None:
    node = facts.node(name)
    assert name in DEVICES
    assert {node.inside, node.outside} <= set(LINKS)
    assert node.host is None or node.host.link in LINKS
    assert node.size in (4, 8)


def test_every_device_but_a_core_has_a_usual_node() -> None:
    assert set(DEVICES) - set(NODES) == {"cpu"}


def test_switches_that_reduce_are_those_from_the_third_nvswitch_on() -> None:
    assert {name for name in LINKS if facts.link(name).reduces} == {"nvlink4", "nvlink4-h800", "nvlink5"}


def test_names_are_of_known_things_and_mean_one_thing() -> None:
    others = [other for names in NAMES["devices"].values() for other in names]
    assert set(NAMES["devices"]) | set(NAMES["reported"].values()) <= set(NODES)
    assert len(set(others)) == len(others)
    assert not set(others) & (set(NODES) | set(NAMES["unclear"]))
    assert {name for names in NAMES["unclear"].values() for name in names} <= set(NODES)
    assert {given["link"] for given in NAMES["links"].values()} <= set(LINKS)


@pytest.mark.parametrize(("typed", "name"), [("h100-sxm", "h100"), ("v100-32gb", "v100"), ("4090", "rtx-4090")])
def test_other_names_are_one_device(typed: str, name: str) -> None:
    assert facts.device_name(typed) == name


def test_a_name_that_says_too_little_is_asked_about() -> None:
    with pytest.raises(UnknownNameError, match="'a100' can be several devices: say a100-40gb or a100-80gb"):
        facts.device_name("a100")


def test_an_origin_of_no_field_is_refused() -> None:
    with pytest.raises(ValueError, match="no field is called 'memry'"):
        Device(memory=1, memory_bandwidth=1, peak={}, origins={"memry": {"source": "x", "date": "y"}})  # type: ignore[dict-item]


def test_the_origin_of_a_figure_is_its_own_or_that_of_all() -> None:
    device = facts.device("h100")
    assert "nvidia-smi" in device.origin("memory").source
    assert device.origin("peak").source == device.source


def test_figures_are_written_before_their_sources() -> None:
    assert list(facts.link("nvlink4").as_data()) == ["bandwidth", "latency", "reduces", "source", "date", "origins"]


@pytest.mark.parametrize(("members", "share"), [(2, 1 / 6), (4, 3 / 6), (7, 1), (8, 1), (1, 1)])
def test_few_members_have_few_of_the_lines_where_there_is_no_switch(members: int, share: float) -> None:
    assert facts.link("nvlink2").among(members).bandwidth == pytest.approx(150e9 * share)
    assert facts.link("nvlink3").among(members).bandwidth == 300e9


def test_hosts_and_links_are_facts_too() -> None:
    assert issubclass(Host, Facts)
    assert issubclass(Link, Facts)
