"""A run on processes of its own: asked to stop it saves, and where a process dies it goes on as if it had not."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import meshwright as mw
from meshwright.errors import MeshwrightError
from meshwright.train.checkpoints import Checkpoints
from meshwright.train.job import Job
from meshwright.train.launch import WorkerError
from meshwright.train.local import run_locally
from tests.train.small import job_of, last_saved, run_of

pytestmark = pytest.mark.timeout(200)
Event = dict[str, Any]


def worker(number: int) -> int:
    """The process id of one of the two ranks, which started last: by their names, since ids begin anew."""
    children = multiprocessing.active_children()
    return sorted(children, key=lambda child: int(child.name.rpartition("-")[2]))[-2:][number].pid or 0


def at_step(step: int, action: Callable[[], None], events: list[Event]) -> Callable[[Event], None]:
    """Hears events, and acts once, when a step is told of."""

    def hear(event: Event) -> None:
        first = not any(each["event"] == "step" and each["step"] == step for each in events)
        events.append(event)
        if first and event["event"] == "step" and event["step"] == step:
            action()

    return hear


def small(folder: Path, **fields: Any) -> Job:
    return job_of(run_of(folder, **fields), "zero2", processes=2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """All that a run of six steps saves at its end."""
    job = small(tmp_path_factory.mktemp("calm"), steps=6)
    run_locally(job, lambda _: None)
    return last_saved(job.folder)


def test_a_killed_rank_ends_the_run_and_a_restart_ends_where_an_undisturbed_one_does(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    disturbed = small(tmp_path, steps=6, checkpoints={"every": 2}, supervision={"restarts": 1})
    events: list[Event] = []
    outcome = run_locally(disturbed, at_step(3, lambda: os.kill(worker(1), signal.SIGKILL), events))
    assert (outcome.step, outcome.stopped) == (6, False)
    told = [event["event"] for event in events]
    assert told.index("restart") < told.index("resume")
    assert "killed by SIGKILL" in next(event["why"] for event in events if event["event"] == "restart")
    found = last_saved(disturbed.folder)
    assert found.keys() == undisturbed.keys()
    assert all(torch.equal(found[name], undisturbed[name]) for name in undisturbed)
    lines = (disturbed.folder / "metrics.jsonl").read_text().splitlines()
    assert [line.count('"event": "step"') for line in lines].count(1) == 6


def test_a_rank_that_hangs_ends_the_run_in_time_with_a_message(tmp_path: Path) -> None:
    job = small(tmp_path, steps=50, supervision={"patience": 12.0})
    stopped: list[float] = []

    def hang() -> None:
        os.kill(worker(1), signal.SIGSTOP)
        stopped.append(time.monotonic())

    with pytest.raises(WorkerError, match="rank 1"):
        run_locally(job, at_step(2, hang, []))
    assert stopped
    assert time.monotonic() - stopped[0] < 60


def test_asked_to_stop_it_saves_and_goes_on_later_as_if_it_had_not_stopped(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    job = small(tmp_path, steps=6, checkpoints={"every": 1, "background": True})
    first = run_locally(job, at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM), []))
    assert first.stopped
    assert 2 <= first.step < 6
    second = run_locally(job, lambda _: None)
    assert (second.step, second.stopped) == (6, False)
    found = last_saved(job.folder)
    assert all(torch.equal(found[name], undisturbed[name]) for name in undisturbed)


def test_a_loss_that_is_no_number_is_said_once_and_nothing_good_is_lost(tmp_path: Path) -> None:
    job = small(
        tmp_path,
        steps=20,
        optimizer={"name": "sgd", "learning_rate": 1e15},
        recipe={"clip_norm": None, "precision": {"compute": "fp32", "reduce": "fp32", "master": None}},
        checkpoints={"every": 1},
    )
    with pytest.raises(
        MeshwrightError, match=r"^step \d+: the (loss|gradient norm) is (nan|inf); the step was not"
    ) as said:
        run_locally(job, lambda _: None)
    assert "\n" not in str(said.value)
    assert Checkpoints(job.folder).latest() is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data": {"source": "nowhere.txt"}}, "nowhere.txt"),
        ({"evaluation": {"every": 2}}, "held"),
        ({"checkpoints": {"resume": "step-9"}}, "is no checkpoint"),
        ({"logging": {"wandb": "project"}}, "pip install wandb"),
        ({"data": {"limit": 20, "tokenizer": {"vocabulary": 400}}}, "vocabulary"),
    ],
)
def test_bad_input_is_one_message_from_all_ranks(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(MeshwrightError, match=said) as error:
        run_locally(small(tmp_path, **fields), lambda _: None)
    assert not isinstance(error.value, WorkerError)
    assert "Traceback" not in str(error.value)


def test_a_plan_for_gpus_is_not_run_on_forked_processes(tmp_path: Path) -> None:
    job = small(tmp_path)
    with pytest.raises(MeshwrightError, match="start a process for each: torchrun"):
        run_locally(replace(job, inputs=job.inputs._replace(cluster=mw.cluster("2xh100"))), lambda _: None)
