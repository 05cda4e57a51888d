"""Anchors and folds."""

from hashlib import sha256
from pathlib import Path

import pytest

from meshwright.cost.calibration import IDEAL
from meshwright.errors import DocumentError
from meshwright.validation.frameworks import framework_of
from meshwright.validation.regimes import FOLD_OF, anchored, anchors, first_by_hash, fold_tasks, read_folds
from meshwright.validation.rows import read_rows
from tests.validation.build import measured, scored, skipped


def test_the_anchor_is_the_row_with_the_least_hash_whatever_the_order() -> None:
    rows = [measured(seq_len=str(length)) for length in range(1, 9)]
    least = min(sha256(row.identity.encode()).hexdigest() for row in rows)
    chosen = first_by_hash(rows)
    assert sha256(chosen.identity.encode()).hexdigest() == least
    assert first_by_hash(rows[::-1]) is chosen


def test_notes_do_not_change_the_choice() -> None:
    assert measured(notes="one").identity == measured(notes="another").identity


def test_an_anchor_sets_the_factor_of_its_source_and_device_and_is_not_scored() -> None:
    rows = [scored(2.0, seconds, seq_len=str(seconds)) for seconds in (1.0, 2.0, 4.0)]
    found = anchors(rows)
    (anchor,) = found.values()
    assert list(found) == [("here", "a100-80gb")]
    assert anchor.row.seconds is not None
    assert anchor.factor == pytest.approx(anchor.row.seconds / 2.0)
    left = anchored(rows)
    assert len(left) == 2
    assert anchor.row not in [each.row for each in left]
    for each in left:
        assert each.predicted is not None
        assert each.predicted.seconds == pytest.approx(2.0 * anchor.factor)
        assert sum(each.predicted.parts.values()) == pytest.approx(each.predicted.seconds)


def test_sources_and_devices_have_factors_of_their_own() -> None:
    one = [scored(1.0, 2.0, seq_len=str(number)) for number in (1, 2)]
    other = [scored(1.0, 4.0, source_id="other", seq_len=str(number)) for number in (1, 2)]
    left = anchored([*one, *other])
    assert [each.row.source for each in left] == ["here", "other"]
    assert [each.error for each in left] == [pytest.approx(0.0), pytest.approx(0.0)]


def test_rows_of_grade_a_set_the_factor_where_there_are_any() -> None:
    rows = [scored(1.0, 3.0, grade="B", seq_len=str(number)) for number in range(20)]
    rows.append(scored(1.0, 2.0))
    (anchor,) = anchors(rows).values()
    assert (anchor.row.grade, anchor.factor) == ("A", pytest.approx(2.0))
    assert len(anchored(rows)) == 20


def test_rows_without_times_are_kept_and_set_nothing() -> None:
    rows = [scored(1.0, None, status="oom"), skipped("no")]
    assert anchors(rows) == {}
    assert anchored(rows) == rows


def test_each_row_gets_the_calibration_that_its_source_was_left_out_of(tmp_path: Path) -> None:
    IDEAL.write(tmp_path / "here.yaml")
    folds = read_folds(["here"], tmp_path)
    row = measured()
    assert fold_tasks([row], folds) == [(row, folds["here"])]
    assert folds["here"].fingerprint == IDEAL.fingerprint
    with pytest.raises(DocumentError, match="there is no calibration without there"):
        read_folds(["here", "there"], tmp_path)


def test_no_fold_has_seen_the_lab_or_the_framework_family_that_it_is_for() -> None:
    kinds: dict[str, set[tuple[str, str]]] = {}
    for row in read_rows():
        framework = framework_of(row)
        kinds.setdefault(row.source, set()).add((framework.lab, framework.family))
    assert set(FOLD_OF) == set(kinds)
    for source, fold in read_folds(kinds).items():
        seen = fold.source.partition(" step times of ")[2].split(", ")
        assert len(seen) > 3
        labs, families = ({kind[at] for kind in kinds[source]} for at in (0, 1))
        for name in seen:
            assert not any(lab in labs or family in families for lab, family in kinds[name]), (source, name)


def test_a_fold_says_nothing_of_the_families_that_were_left_out() -> None:
    """Nor do devices that it does not name have what runs on others were not fitted to."""
    rows = read_rows()
    for source, fold in read_folds(FOLD_OF).items():
        own = {framework_of(row).family for row in rows if row.source == source}
        assert source == "nanotron" or not own & set(fold.software)
        named = fold.devices["h100"]
        shared = ("narrow", "by_rows", "unaligned", "unaligned_batched", "batched", "early_flash", "edge", "start")
        assert [getattr(fold.others, name) for name in shared] == [getattr(named, name) for name in shared]
