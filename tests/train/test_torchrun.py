"""`meshwright train` on processes that a launcher started, told apart by what torchrun sets."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from meshwright.cli import main
from meshwright.train.launch import WorkerPool, preload
from tests.train.small import job_of, run_of

SIZE = 2


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launched(run: Path, *typed: str) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each rank."""
    shared = {
        "WORLD_SIZE": str(SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    arguments = (sys.executable, "-m", "meshwright", "train", str(run), "--json", *typed)
    started = [
        subprocess.Popen(
            arguments,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    found = [process.communicate(timeout=200) for process in started]
    return [(process.returncode, *texts) for process, texts in zip(started, found, strict=True)]


@pytest.mark.timeout(240)
def test_processes_of_a_launcher_search_a_plan_once_and_run_it_together(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    run_of(tmp_path, steps=2, cluster=f"cpu:{SIZE}").write(file)
    first, second = launched(file)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    events = [json.loads(line) for line in first[1].splitlines()]
    assert [event["event"] for event in events] == ["begin", "step", "step", "checkpoint", "end"]
    assert events[0]["processes"] == SIZE
    assert events[1]["predicted_step_time_s"] > 0
    assert second[1] == ""
    assert {each.name for each in (tmp_path / "run" / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}


def as_launched(rank_0_port: int, typed: list[str]) -> tuple[Any, str]:
    """Exit code and errors of the command, where a launcher started this process. Runs on every rank of a pool, which
    is to be no more.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rank_0_port)}
    with contextlib.redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as ended:
        main(["train", *typed])
    return ended.value.code, said.getvalue()


@pytest.mark.timeout(120)
def test_a_plan_for_another_number_of_processes_is_said_by_rank_0_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    run = run_of(tmp_path, steps=2)
    job_of(run).inputs.plan.write(tmp_path / "plan.yaml")
    run.model_copy(update={"plan": str(tmp_path / "plan.yaml")}).write(file)
    preload()
    with WorkerPool(SIZE) as pool:
        first, second = pool.run(as_launched, free_port(), [str(file)])
    assert (first[0], second[0]) == (2, 2)
    assert "the plan is for 4 processes, but 2 run" in first[1]
    assert second[1] == ""
