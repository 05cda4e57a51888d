"""Text as batches: the same samples at the same step, from the text, and nothing else."""

import sysconfig
from pathlib import Path

import pytest
import torch

from meshwright.errors import MeshwrightError
from meshwright.train.data import BYTES, ByteText, standard_library_text

TEXT = bytes(range(BYTES)) * 8


def test_a_step_has_the_same_samples_whenever_it_is_asked() -> None:
    one, other = ByteText(TEXT, 16, seed=3), ByteText(TEXT, 16, seed=3)
    other.batch(0, 8)
    assert torch.equal(one.batch(5, 8)["input_ids"], other.batch(5, 8)["input_ids"])


def test_steps_and_seeds_have_samples_of_their_own() -> None:
    drawn = [ByteText(TEXT, 16, seed=seed).batch(step, 8)["input_ids"] for seed in (0, 1) for step in (0, 1)]
    assert all(not torch.equal(a, b) for place, a in enumerate(drawn) for b in drawn[place + 1 :])


def test_samples_are_runs_of_the_text_with_labels_that_are_not_shifted() -> None:
    batch = ByteText(TEXT, 16).batch(0, 5)
    assert batch["input_ids"].shape == (5, 16)
    assert batch["input_ids"].dtype == torch.int64
    assert torch.equal(batch["input_ids"], batch["labels"])
    assert all(bytes(sample.tolist()) in TEXT for sample in batch["input_ids"])


def test_a_text_shorter_than_a_sample_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="a text of 16 bytes gives no sample of 16; take shorter samples"):
        ByteText(TEXT[:16], 16)


def test_the_standard_library_is_text_up_to_a_limit() -> None:
    text = standard_library_text(100_000)
    assert len(text) == 100_000
    assert b"import" in text
    assert text == standard_library_text(200_000)[:100_000]


def test_a_python_without_its_source_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "few.py").write_text("pass\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(MeshwrightError, match="holds no source of the standard library"):
        standard_library_text()
