"""Documents whose tables are generated."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from meshwright.cost.calibration import IDEAL
from meshwright.errors import DocumentError
from meshwright.report.accuracy import TABLES, Regimes, write_accuracy
from meshwright.report.blocks import Facts, Lines, table
from meshwright.report.markdown import markdown_text
from meshwright.validation.score import Scored, Task
from tests.validation.build import scored


class Recorder:
    """A scorer that answers with the same rows, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Sequence[Task]] = []

    def __call__(self, tasks: Sequence[Task]) -> list[Scored]:
        self.asked.append(tasks)
        return [scored(1.1, 1.0), scored(3.0, 2.0, grade="B")]


@pytest.fixture
def scorer() -> Recorder:
    return Recorder()


@pytest.fixture
def regimes(scorer: Recorder) -> Regimes:
    return Regimes([scored(1.0, 1.0).row], scorer)


def write(path: Path, *names: str) -> Path:
    path.write_text(
        "# Title\n\n" + "\n".join(f"<!-- generated: {name} -->\nold\n<!-- end of {name} -->" for name in names)
    )
    return path


def test_only_the_tables_whose_markers_are_there_are_made(tmp_path: Path, regimes: Regimes, scorer: Recorder) -> None:
    path = write(tmp_path / "accuracy.md", "baseline")
    assert write_accuracy(path, regimes) == ["baseline"]
    text = path.read_text()
    assert text.startswith("# Title\n\n<!-- generated: baseline -->\n**error of the step time, rows of grade A**\n")
    assert "| here | 1 | 10.0% | 10.0% | 10.0% | +10.0% | - |" in text
    assert "| here | 1 | 50.0% | 50.0% | 50.0% | +50.0% | - |" in text
    assert text.endswith("<!-- end of baseline -->")
    assert "old" not in text
    (tasks,) = scorer.asked
    assert [task.calibration for task in tasks] == [IDEAL]


def test_writing_twice_changes_nothing_and_keeps_the_prose(tmp_path: Path, regimes: Regimes) -> None:
    path = write(tmp_path / "accuracy.md", "baseline", "rows", "prior-art", "memory", "fits", "fitted")
    path.write_text(path.read_text() + "\n\nA word of prose.\n")
    write_accuracy(path, regimes)
    once = path.read_text()
    write_accuracy(path, regimes)
    assert path.read_text() == once
    assert once.endswith("A word of prose.\n")
    assert "vTrain" in once


def test_each_regime_is_scored_once(tmp_path: Path, regimes: Regimes, scorer: Recorder) -> None:
    write_accuracy(write(tmp_path / "a.md", "baseline", "rows", "fitted", "memory", "fits"), regimes)
    assert len(scorer.asked) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no marker", "says where a table goes; known names: baseline"),
        (
            "<!-- generated: base-line -->\n<!-- end of base-line -->",
            "no table is called 'base-line'; did you mean 'baseline'?",
        ),
        ("<!-- generated: rows -->\n", "after '<!-- generated: rows -->' there is no '<!-- end of rows -->'"),
    ],
)
def test_a_document_that_cannot_be_filled_in_is_left_as_it_is(
    text: str, said: str, tmp_path: Path, regimes: Regimes
) -> None:
    path = tmp_path / "accuracy.md"
    path.write_text(text)
    with pytest.raises(DocumentError) as found:
        write_accuracy(path, regimes)
    assert said in str(found.value)
    assert path.read_text() == text


def test_the_document_of_this_repository_has_markers_that_are_known() -> None:
    text = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("<!-- generated: ")]
    assert "baseline" in names
    assert set(names) <= set(TABLES)
    assert all(f"<!-- end of {name} -->" in text for name in names)


def test_markdown_aligns_numbers_and_guards_bars() -> None:
    blocks = [table("t", "a | >b", [("x|y", "1")]), Facts("", (("n", "v"),)), Lines("", ("said",))]
    assert markdown_text(blocks) == "**t**\n\n| a | b |\n| --- | --: |\n| x\\|y | 1 |\n\n* n: v\n\nsaid\n"
