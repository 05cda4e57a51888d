"""The note of an estimate on another size of gradient buckets, as a user of the command line gets it."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_broken_files import run
from tests.test_cli import as_json

NOTE = re.compile(r"'bucket_mib: (\d+)' would take (\d+\.\d)% off the step; it is (\S+)")


def estimated(folder: Path, bucket: float, *options: str, cluster: str = "8xa100-80gb") -> dict[str, Any]:
    """The estimate of a GPT-2 on eight devices with this size of buckets."""
    path = folder / "plan.yaml"
    asked = ("--model", "gpt2", "--cluster", cluster, "--seq", "256", "--global-batch", "8", *options)
    code, _, err = run("estimate", *asked, "-o", str(path))
    assert (code, err) == (0, "")
    path.write_text(f"{path.read_text()}execution: {{bucket_mib: {bucket}}}\n")
    # Without losses: what kernels take of a host would hide some of the differences.
    found: dict[str, Any] = as_json("estimate", str(path), "--calibration", "ideal")
    return found


def notes(found: dict[str, Any]) -> list[re.Match[str]]:
    """Those on buckets."""
    return [match for note in found["notes"] if (match := NOTE.fullmatch(note))]


@pytest.mark.parametrize("bucket", [1, 400])
@pytest.mark.parametrize("options", [(), ("--zero", "1"), ("--pp", "2", "--micro-batches", "2")], ids=" ".join)
def test_the_bucket_that_is_named_saves_what_is_said(bucket: float, options: tuple[str, ...], tmp_path: Path) -> None:
    before = estimated(tmp_path, bucket, *options)
    [note] = notes(before)
    assert float(note[3]) == bucket
    after = estimated(tmp_path, float(note[1]), *options)
    saved = 1 - after["step_time_s"] / before["step_time_s"]
    assert saved >= 0.01
    assert f"{saved:.1%}" == f"{note[2]}%"
    assert notes(after) == []


def test_nothing_is_said_where_nothing_is_reduced(tmp_path: Path) -> None:
    assert notes(estimated(tmp_path, 1, "--tp", "4", "--dp", "1", cluster="4xa100-80gb")) == []


def test_over_gloo_which_hides_nothing_fewer_and_larger_buckets_are_named(tmp_path: Path) -> None:
    [note] = notes(estimated(tmp_path, 0.001, cluster="cpu:8"))
    assert int(note[1]) > 256
