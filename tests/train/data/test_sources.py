"""Sources: the same rows from each format, by number; what cannot be read is one clear message."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from meshwright.errors import MeshwrightError
from meshwright.recipe.data import Data
from meshwright.train.data.rows import Listed, Rows, divided
from meshwright.train.data.sources import read_rows

ROWS = [{"text": f"text {number} – ünï", "label": number % 3} for number in range(7)]


def write_jsonl(folder: Path) -> str:
    lines = [json.dumps(row) for row in ROWS]
    (folder / "a.jsonl").write_text("\n".join(lines[:3]) + "\n\n")
    (folder / "b.jsonl").write_text("\n".join(lines[3:]))
    (folder / "README.md").write_text("# beside the data")
    return str(folder)


def write_parquet(folder: Path) -> str:
    parquet.write_table(pa.Table.from_pylist(ROWS), folder / "a.parquet", row_group_size=2)
    return str(folder / "*.parquet")


def write_hugging_face(folder: Path) -> str:
    found = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS[:1]))
    found.save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


def every(rows: Rows) -> list[Any]:
    return [rows[index] for index in range(len(rows))]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet, write_hugging_face])
def test_each_format_gives_the_rows(write: Callable[[Path], str], tmp_path: Path) -> None:
    rows = read_rows(Data(source=write(tmp_path)))
    assert every(rows) == ROWS
    assert rows[5] == ROWS[5]


def test_a_split_and_a_limit_take_what_they_say(tmp_path: Path) -> None:
    source = write_hugging_face(tmp_path)
    assert every(read_rows(Data(source=source, split="test"))) == ROWS[:1]
    assert every(read_rows(Data(source=source, limit=2))) == ROWS[:2]
    with pytest.raises(MeshwrightError, match="has no split 'tets'; did you mean 'test'"):
        read_rows(Data(source=source, split="tets"))


def test_a_saved_dataset_is_found_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hugging_face(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert every(read_rows(Data(source="~/saved"))) == ROWS


def test_a_folder_of_files_in_a_layout_of_hugging_faces_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "data" / "test-00000-of-00001.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = read_rows(Data(source=str(tmp_path / "data"), format="huggingface", split="test"))
    assert every(rows) == ROWS


def test_each_text_file_is_a_text(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden.txt"):
        (tmp_path / name).write_text(name)
    assert every(read_rows(Data(source=str(tmp_path)))) == [{"text": "a.txt"}, {"text": "b.txt"}]


def test_images_are_of_the_class_that_their_folder_names(tmp_path: Path) -> None:
    for name in ("cat", "ape"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / name / "1.png")
    found = every(read_rows(Data(source=str(tmp_path))))
    assert [(row["image"].parent.name, row["label"]) for row in found] == [("ape", 0), ("cat", 1)]


def test_digits_are_images_of_eight_by_eight() -> None:
    rows = read_rows(Data(source="digits"))
    assert len(rows) == 1797
    assert {rows[index]["label"] for index in range(20)} == set(range(10))
    assert rows[0]["image"].shape == (8, 8)
    assert rows[0]["image"].max() > 200


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "row 2 is no JSON"),
        ("a.jsonl", b"[1, 2]\n", "is no JSON object"),
        ("a.jsonl", b"\n  \n", "holds nothing to learn from"),
        ("a.txt", b"ab\xff", "no UTF-8 text \\(byte 2\\)"),
        ("a.parquet", b"PAR1", "as Parquet: "),
        ("a.bin", b"x", "has no name that tells its format; write data.format"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MeshwrightError, match=said) as error:
        every(read_rows(Data(source=str(tmp_path / name))))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("sdtlib", "there is no file or folder 'sdtlib'; did you mean 'stdlib'"),
        ("nowhere/*.txt", "no file is named like 'nowhere/\\*.txt'"),
    ],
)
def test_a_source_that_is_not_there_is_told(source: str, said: str) -> None:
    with pytest.raises(MeshwrightError, match=said):
        read_rows(Data(source=source))


def test_a_folder_of_two_formats_wants_a_word(tmp_path: Path) -> None:
    write_jsonl(tmp_path)
    write_parquet(tmp_path)
    with pytest.raises(MeshwrightError, match=r"holds files of several formats \(jsonl, parquet\); write data.format"):
        read_rows(Data(source=str(tmp_path)))
    assert every(read_rows(Data(source=str(tmp_path), format="parquet"))) == ROWS


def test_what_is_held_out_and_what_is_learnt_are_all_rows_once() -> None:
    rows = Listed([{"n": number} for number in range(50)])
    learnt, held = (every(divided(rows, 0.2, held_out=side)) for side in (False, True))
    assert len(held) == 10
    assert sorted(row["n"] for row in learnt + held) == list(range(50))


def test_a_single_text_is_cut_in_two() -> None:
    rows = Listed([{"text": "0123456789"}])
    assert [every(divided(rows, 0.25, held_out=side))[0]["text"] for side in (False, True)] == ["0123456", "789"]


@pytest.mark.parametrize(("share", "side"), [(0.0, True), (0.9, False)])
def test_a_side_without_rows_is_refused(share: float, side: bool) -> None:
    with pytest.raises(MeshwrightError, match=r"data.held_out .* of 2 rows leaves none on one side"):
        divided(Listed([{"n": 0}, {"n": 1}]), share, held_out=side)
