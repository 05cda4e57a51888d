"""The rows that come with the package, and files that are no such rows."""

from collections import Counter
from pathlib import Path

import pytest

from meshwright.errors import DocumentError
from meshwright.validation.memory_kinds import figure_of
from meshwright.validation.rows import DATA, read_rows
from tests.validation.build import ROW, measured, write_csv

COUNTS = {
    "vtrain_single": 610,
    "hagemann2023": 273,
    "megatron_bridge": 143,
    "mlperf": 102,
    "llm_foundry": 128,
    "bigscience": 95,
    "dgxc_bench": 168,
    "vtrain_multi": 47,
    "nemo_docs": 41,
    "internevo": 42,
    "zero_bubble": 12,
    "torchtitan": 26,
    "nanotron": 13,
    "megatron_sc21": 23,
    "korthikanti2022": 22,
    "pytorch_blogs": 20,
    "megatron_moe_zoo": 18,
    "primus_amd": 18,
    "megatron_readme_2020": 12,
    "megatron_readme_jan2021": 10,
    "fms_fsdp": 9,
}


def test_the_package_has_1832_rows_of_21_sources() -> None:
    rows = read_rows()
    assert Counter(row.source for row in rows) == COUNTS
    assert len(rows) == 1832


def test_every_file_of_rows_has_a_source_note_with_its_count() -> None:
    lines = (DATA / "SOURCES.md").read_text().splitlines()
    noted = {cells[1].strip(): int(cells[2]) for line in lines if (cells := line.split("|"))[1:] and ".csv" in cells[1]}
    assert noted == {f"{name}.csv": count for name, count in COUNTS.items()}


def test_every_kind_of_measured_memory_is_compared_with_one_of_our_figures() -> None:
    kinds = {row.text("mem_kind") for row in read_rows() if row.memory_bytes and row.grade in ("A", "B")}
    assert len(kinds) > 5
    assert [kind for kind in kinds if figure_of(kind) is None] == []


def test_times_come_from_seconds_or_else_from_tokens_a_second() -> None:
    pace = {"global_batch": "16", "seq_len": "1024", "measured_tokens_per_s_per_gpu": "512", "n_gpus": "8"}
    assert measured(measured_iter_time_s="2.5", **pace).seconds == 2.5
    assert measured(**pace).seconds == 16 * 1024 / (512 * 8)
    assert measured(measured_tflops_per_gpu="140", measured_mfu_pct="45").seconds is None


def test_an_identity_is_the_same_in_another_file_and_differs_between_rows() -> None:
    rows = read_rows()
    assert read_rows([DATA / "fms_fsdp.csv"])[0].identity in {row.identity for row in rows}
    assert len({row.identity for row in rows}) > 1800


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rows.csv: it is empty"),
        ("source_id,grade\n", "rows.csv: there are no rows under its columns"),
        ("source_id,grade\nx,A\n", "rows.csv: columns are missing: model_name, gpu, n_gpus, framework, status"),
    ],
)
def test_a_file_without_rows_or_columns_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DocumentError, match=said):
        read_rows([tmp_path / "rows.csv"])


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("seq_len", "long", "rows.csv:3: seq_len: 'long' is no number from 0 on"),
        ("tp", "-2", "rows.csv:3: tp: '-2' is no number from 0 on"),
        ("measured_iter_time_s", "nan", "rows.csv:3: measured_iter_time_s: 'nan' is no number from 0 on"),
        ("measured_iter_time_s", "inf", "rows.csv:3: measured_iter_time_s: 'inf' is no number from 0 on"),
        ("n_gpus", "0", "rows.csv:3: n_gpus: no device ran"),
    ],
)
def test_what_should_be_a_number_and_is_none_is_said_with_its_place(
    column: str, value: str, said: str, tmp_path: Path
) -> None:
    good = ROW | {"seq_len": "1024", "tp": "1", "measured_iter_time_s": "1.5"}
    path = write_csv(tmp_path / "rows.csv", [good, good | {column: value}])
    with pytest.raises(DocumentError) as found:
        read_rows([path])
    assert str(found.value) == said


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DocumentError, match=r"rows\.csv: no CSV"):
        read_rows([tmp_path / "rows.csv"])
    with pytest.raises(DocumentError, match="No such file"):
        read_rows([tmp_path / "none.csv"])
