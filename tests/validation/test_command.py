"""`meshwright validate` as a user types it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_broken_files import run
from tests.test_cli import ROOT, on_a_terminal
from tests.validation.build import some_rows, write_csv

KEYS = {
    "rows_used",
    "rows_skipped",
    "median_abs_error",
    "mean_abs_error",
    "bias",
    "spearman",
    "memory_median_abs_error",
    "fit_confusion",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four rows of one source with a time, two without, and one of another that says too little."""
    timed = some_rows("korthikanti2022", 4)
    chosen = [*timed, timed[0] | {"status": "not_run"}, some_rows("internevo", 42)[-1], timed[0] | {"seq_len": ""}]
    return write_csv(tmp_path_factory.mktemp("rows") / "rows.csv", chosen)


@pytest.fixture(scope="module")
def data(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `--json` writes for them."""
    path = tmp_path_factory.mktemp("json") / "out.json"
    assert run("validate", str(rows), "--calibration", "ideal", "--json", str(path))[0] == 0
    return json.loads(path.read_text())


def test_json_has_every_key_of_a_source_and_counts_its_rows(data: Any) -> None:
    assert set(data["sources"]) == {"korthikanti2022", "internevo"}
    for found in data["sources"].values():
        assert set(found) >= KEYS
        assert found["rows_used"] + found["rows_skipped"] == (6 if found is data["sources"]["korthikanti2022"] else 1)
    assert data["sources"]["korthikanti2022"]["rows_used"] == 4
    assert sum(data["sources"]["korthikanti2022"]["skipped"].values()) == 2


def test_errors_are_fractions_that_the_rows_bear_out(data: Any) -> None:
    errors = [row["predicted_s"] / row["measured_s"] - 1 for row in data["rows"] if row.get("error") is not None]
    own = [row["error"] for row in data["rows"] if row["source"] == "korthikanti2022" and not row["skipped"]]
    assert own == pytest.approx(errors[: len(own)])
    found = data["sources"]["korthikanti2022"]
    assert found["mean_abs_error"] == pytest.approx(sum(map(abs, own)) / 4)
    assert -0.9 < found["bias"] < 0  # the plain roofline is never too slow


def test_the_tables_name_sources_reasons_and_totals(rows: Path) -> None:
    code, out, err = run("validate", str(rows), "--calibration", "ideal")
    assert (code, err) == (0, "")
    assert "error of the step time, rows of grade A" in out
    assert "\x1b" not in out
    assert "seq_len is not said" in out
    assert "calibration ideal: " in out
    assert any(line.split() == ["all", "7", "5", "0", "2"] for line in out.splitlines())


def test_the_worst_rows_are_explained_part_by_part(rows: Path) -> None:
    code, out, _ = run("validate", str(rows), "--calibration", "ideal", "--source", "korthikanti2022", "--worst", "1")
    assert code == 0
    assert "rows.csv:" in out
    assert "backward" in out
    assert re.search(r"plan +tp(\+sp)? 8 on each of \d+ stages, \w+, \d+ micro-batches, recompute", out)
    assert "internevo" not in out


def test_json_to_standard_output_is_json_alone(rows: Path) -> None:
    code, out, err = run("validate", str(rows), "--calibration", "ideal", "--json", "-")
    assert (code, err) == (0, "")
    assert len(json.loads(out)["rows"]) == 7


def test_a_document_gets_its_tables(rows: Path, tmp_path: Path) -> None:
    path = tmp_path / "accuracy.md"
    path.write_text("<!-- generated: baseline -->\n<!-- end of baseline -->\n")
    assert run("validate", str(rows), "--docs", str(path)) == (0, f"{path}: wrote baseline\n", "")
    assert "| korthikanti2022 | 4 |" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.csv",), "none.csv: No such file or directory"),
        (("ROWS", "--calibration", "none.yaml"), "cannot read none.yaml: No such file or directory"),
        (("ROWS", "--source", "internvo"), "--source: no row is of 'internvo'; did you mean 'internevo'?"),
        (
            ("ROWS", "--json", "/no/such/folder/out.json"),
            "cannot write /no/such/folder/out.json: No such file or directory",
        ),
        (("ROWS", "--docs", "none.md"), "cannot read none.md: No such file or directory"),
        (("ROWS", "--worst", "-1"), "--worst: must be at least 0 (got -1)"),
    ],
)
def test_what_is_wrong_is_one_message_with_exit_code_2(arguments: tuple[str, ...], said: str, rows: Path) -> None:
    given = [str(rows) if argument == "ROWS" else argument for argument in arguments]
    assert run("validate", *given) == (2, "", f"{said}\n")


def test_a_terminal_gets_tables_and_no_bar_for_what_takes_no_time(rows: Path) -> None:
    code, out = on_a_terminal("validate", str(rows), "--calibration", "ideal", "--source", "internevo", columns=200)
    assert code == 0
    assert "─" in out


INTERRUPTED = """
import os, signal
from meshwright.cli import main
from meshwright.report import validate

whole = validate.score_rows

def interrupted(tasks):
    for number, each in enumerate(whole(tasks)):
        yield each
        if number == 9:
            os.killpg(0, signal.SIGINT)

validate.score_rows = interrupted
main(["validate", "--calibration", "ideal", "--source", "vtrain_single"])
"""


def test_ctrl_c_shows_what_was_done_so_far_and_workers_say_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.splitlines()[-1] == "stopped after 10 of 610 rows"
    assert "vtrain_single    10" in done.stdout
