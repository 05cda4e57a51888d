"""Checkpoints: whole tensors by name, the same under every plan; whole on the disk, or not there."""

import json
import os
import pickle
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from meshwright.errors import MeshwrightError
from meshwright.train import checkpoint
from meshwright.train.checkpoint import contents, read_whole
from meshwright.train.checkpoint_boxes import CheckpointError, Reader
from meshwright.train.checkpoints import Checkpoints, find
from meshwright.train.job import Job
from meshwright.train.launch import WorkerPool
from tests.train.exchange import PLANS, exchange, started
from tests.train.small import job_of, run_of, saved

TODAY = date.today().toordinal()
"""Which plans, and which of them reads whose checkpoint; all pairs at once: make exchange."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("model", "optimizer", "plans"),
    [
        ("llama", "adamw", dict(list(PLANS.items())[TODAY % 2 :: 2])),
        ("gpt2", "muon", dict.fromkeys(("tensor", "zero3", "pipeline"), 4)),
        ("llama", "adafactor", dict.fromkeys(("zero3", "tensor"), 4)),
    ],
)
def test_each_of_unlike_plans_reads_what_another_wrote_bit_for_bit(
    pool: WorkerPool, tmp_path: Path, model: str, optimizer: str, plans: dict[str, int]
) -> None:
    names, offset = list(plans), 1 + TODAY % (len(plans) - 1)
    sources = {name: [names[(place + offset) % len(names)]] for place, name in enumerate(names)}
    wrong = exchange(plans, sources, tmp_path, pool, model=model, optimizer={"name": optimizer})
    assert not wrong, wrong[:3]
    first = saved(tmp_path / names[0])
    assert sum(tensor.numel() for name, tensor in first.items() if "/" not in name) > 10_000
    moments = [tensor for name, tensor in first.items() if name.endswith(("exp_avg", "momentum_buffer", "row_var"))]
    assert len(moments) > 20
    assert all(bool(tensor.any()) for tensor in moments)


def written(job: Job, place: Path, spoil: Callable[[], None] | None = None) -> str:
    """A checkpoint, or what was wrong. Runs on every rank."""
    parallel, stepper = started(job)
    if spoil is not None and dist.get_rank() == 1:
        spoil()
    try:
        checkpoint.write(place, contents(parallel, stepper), {"step": 0})
    except CheckpointError as error:
        return str(error)
    return ""


def fill_the_disk() -> None:
    """This rank's writes end with ENOSPC from here on."""

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    os.fsync = full  # what DCP calls when a file is written


def test_a_disk_that_is_full_is_said_on_all_ranks_and_leaves_nothing(tmp_path: Path) -> None:
    job = job_of(run_of(tmp_path), "zero3")
    with WorkerPool(4) as pool:
        said = pool.run(written, job, tmp_path / "c", fill_the_disk)
    assert len(set(said)) == 1
    assert "cannot write the checkpoint" in said[0]
    assert "on rank 1: " in said[0]
    assert "No space left on device" in said[0]
    assert not (tmp_path / "c").exists()
    assert not list(tmp_path.glob(".c*"))


def checked(place: Path) -> str:
    try:
        checkpoint.check(place)
    except MeshwrightError as error:
        return str(error)
    return ""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("hurt", ["flip", "cut", "remove", "facts"])
def test_a_checkpoint_that_is_not_what_was_written_is_refused_by_name(
    pool: WorkerPool, tmp_path: Path, hurt: str
) -> None:
    place = tmp_path / "c"
    pool.run(written, job_of(run_of(tmp_path), "zero3"), place)
    assert pool.run(checked, place) == [""] * 4
    victim = place / ("checkpoint.json" if hurt == "facts" else "__2_0.distcp")
    if hurt == "flip":
        flip(victim)
    elif hurt == "remove":
        victim.unlink()
    else:
        os.truncate(victim, victim.stat().st_size // 2)
    said = pool.run(checked, place)
    assert len(set(said)) == 1
    assert "corrupt" in said[0]
    assert victim.name in said[0]
    with pytest.raises(CheckpointError, match="corrupt"):
        read_whole(place)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/owned",)


def test_nothing_of_a_checkpoint_is_executed(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(pickle.UnpicklingError, match="no business with"):
        Reader(tmp_path).read_metadata()


def whole(folder: Path, step: int) -> Path:
    place = Checkpoints(folder).place(step)
    place.mkdir(parents=True)
    (place / "checkpoint.json").write_text(json.dumps({"meshwright_checkpoint": 1, "step": step, "files": {}}))
    return place


def test_latest_only_ever_names_a_whole_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    first = whole(tmp_path, 10)
    checkpoints.name_latest(first)
    half = checkpoints.place(20)
    half.mkdir()  # a folder without its facts
    assert checkpoints.latest() == first
    second = whole(tmp_path, 30)
    assert checkpoints.latest() == first
    checkpoints.name_latest(second)
    assert checkpoints.latest() == second
    (checkpoints.folder / "latest").write_text("step-00000099\n")
    assert checkpoints.latest() == second


def test_old_checkpoints_go_and_halves_with_them_but_never_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    places = [whole(tmp_path, step) for step in (10, 20, 30, 40)]
    (checkpoints.folder / ".step-00000050.partial").mkdir()
    checkpoints.name_latest(places[0])
    checkpoints.keep(2)
    assert checkpoints.whole() == [places[0], *places[2:]]
    assert not list(checkpoints.folder.glob(".step-*"))


def test_where_a_run_begins_is_found_or_said(tmp_path: Path) -> None:
    assert find("latest", tmp_path) is None
    assert find("never", tmp_path) is None
    place = whole(tmp_path, 10)
    assert find("latest", tmp_path) == place
    assert find(str(place), tmp_path / "other") == place
    assert find(str(tmp_path), tmp_path / "other") == place
    with pytest.raises(CheckpointError, match="has the checkpoints of a run"):
        find("never", tmp_path)
    with pytest.raises(CheckpointError, match=r"is no checkpoint; .* has: step-00000010"):
        find(str(tmp_path / "step-7"), tmp_path)
