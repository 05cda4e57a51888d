"""Tables and data of a validation, from rows made by hand."""

import json

from meshwright.report.plain import plain_text
from meshwright.report.validation import validation_blocks, validation_data
from meshwright.report.worst import worst_blocks
from meshwright.validation.score import Scored
from tests.validation.build import scored, skipped


def beside(each: Scored, seconds: float) -> Scored:
    """With a time under full recompute."""
    assert each.predicted is not None
    return type(each)(each.row, each.predicted._replace(full_recompute=seconds), device=each.device)


def rows() -> list[Scored]:
    return [
        scored(1.1, 1.0, peak_mem_gb="10", mem_kind="GB (torch peak)"),
        scored(0.9, 1.0),
        beside(scored(1.0, 2.0, grade="B", recompute=""), 1.5),
        scored(1.0, None, status="oom", word="does not fit", out=0.9),
        skipped("its grade is C", grade="C"),
    ]


def test_grades_stand_apart_and_full_recompute_beside_grade_b() -> None:
    text = plain_text(validation_blocks(rows(), "mine: fitted"))
    first, second = (text.split(f"rows of grade {grade}\n", 1)[1].split("\n\n")[0] for grade in "AB")
    assert first.splitlines()[1].split() == ["here", "2", "10.0%", "10.0%", "10.0%", "+0.0%", "-"]
    assert second.splitlines()[1].split() == [
        "here",
        "1",
        "50.0%",
        "50.0%",
        "50.0%",
        "-50.0%",
        "-",
        "1,",
        "25.0%,",
        "-25.0%",
    ]
    assert "full recompute" not in first
    assert "recompute: nothing is recomputed" in text


def test_memory_fits_and_skipped_rows_have_tables() -> None:
    text = plain_text(validation_blocks(rows(), "mine: fitted"))
    assert "here    A      GB (torch peak)  allocated         1    6.9%" in text
    assert "here    A                 2" in text.split("ran out of memory\n")[1]
    assert "here       1  its grade is C" in text
    assert any(line.split() == ["all", "5", "3", "1", "1"] for line in text.splitlines())


def test_data_are_json_without_infinities_even_where_nothing_was_used() -> None:
    found = validation_data([skipped("no", source_id="empty"), *rows()], "mine")
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    empty, here = found["sources"]["empty"], found["sources"]["here"]
    assert (empty["rows_used"], empty["rows_skipped"], empty["median_abs_error"]) == (0, 1, None)
    assert (here["rows_used"], here["rows_skipped"], here["grade"]) == (4, 1, "A")
    assert here["median_abs_error"] == here["grades"]["A"]["median_abs_error"]
    assert here["fit_confusion"]["balanced_accuracy"] == 1.0
    assert here["grades"]["B"]["full_recompute"]["bias"] == -0.25


def test_a_source_of_grade_b_alone_speaks_by_it() -> None:
    found = validation_data([scored(3.0, 2.0, grade="B")], "mine")["sources"]["here"]
    assert (found["grade"], found["bias"]) == ("B", 0.5)


def test_a_half_is_as_bad_as_the_double_and_worse_than_nine_tenths() -> None:
    shown = [
        scored(0.9, 1.0, model_name="near"),
        scored(0.45, 1.0, model_name="half"),
        scored(2.0, 1.0, model_name="double"),
    ]
    text = plain_text(worst_blocks(shown, 2))
    assert text.index("half") < text.index("double")
    assert "near" not in text
    assert "+100.0%" in text
    assert "no row has a time" in plain_text(worst_blocks([skipped("no")], 2))
