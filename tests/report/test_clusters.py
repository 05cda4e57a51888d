"""The list of known devices and links."""

from meshwright.cluster import facts
from meshwright.report.clusters import clusters_blocks, clusters_data
from meshwright.report.plain import plain_text


def test_without_a_word_everything_is_listed() -> None:
    data = clusters_data()
    assert [row["name"] for row in data["devices"]] == list(facts.table("devices"))
    assert [row["name"] for row in data["links"]] == list(facts.table("links"))


def test_words_are_found_in_any_name_at_its_beginning() -> None:
    assert {row["name"] for row in clusters_data("h100")["devices"]} == {"h100", "h100-500w", "h100-pcie", "h100-nvl"}
    assert clusters_data("h100")["links"] == []
    assert [row["name"] for row in clusters_data("A100 pcie 80gb")["devices"]] == ["a100-pcie-80gb"]
    assert [row["name"] for row in clusters_data("trillium")["devices"]] == ["tpu-v6e"]
    assert [row["name"] for row in clusters_data("ib400")["links"]] == ["ib-ndr400"]


def test_a_device_comes_with_its_node_price_and_sources_in_base_units() -> None:
    (row,) = clusters_data("gb200")["devices"]
    assert row["memory"] == 189471 * 2**20
    assert row["peak"]["fp4"] == 1e16
    assert (row["node"]["size"], row["node"]["domain"], row["node"]["inside"]) == (4, 18, "nvlink5")
    assert row["origins"]["memory"]["date"] == "2026-11"
    (row,) = clusters_data("h800")["devices"]
    assert row["node"]["price"]["per_device_hour"] == 2.0


def test_the_list_shows_memory_peaks_node_price_source_and_date() -> None:
    text = plain_text(clusters_blocks("h100"))
    for word in ("79.6 GiB", "989 TFLOP/s", "8 by nvlink4, out by 8 ib-ndr400", "2.95", "2026-05", "nvidia-smi"):
        assert word in text
    assert "ib-ndr400 (ib400)" in plain_text(clusters_blocks("ib400"))


def test_nothing_found_is_said() -> None:
    assert "no known device or link has 'z80'" in plain_text(clusters_blocks("z80"))
