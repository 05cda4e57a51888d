"""The pool of forked workers: what it returns, how it names failures, and that it leaves no process behind."""

import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshwright.errors import MeshwrightError
from meshwright.train.launch import WorkerError, WorkerPool, WorkerTimeout, emit


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(4) as workers:
        yield workers


def rank_and_pid() -> tuple[int, int]:
    return dist.get_rank(), os.getpid()


def pids_of(workers: WorkerPool) -> list[int]:
    return [pid for _, pid in workers.run(rank_and_pid)]


def alive(pids: list[int]) -> list[int]:
    """Those that still exist; a zombie counts, because a pool reaps what it starts."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            found.append(pid)
    return found


def running(pids: list[int]) -> list[int]:
    """Those that exist and are no zombies: for processes that are not ours to reap."""
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [pid for pid, stat in states.items() if stat.exists() and ") Z " not in stat.read_text()]


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


# Results


def add_with_rank(base: int, *, factor: int) -> int:
    return base + factor * dist.get_rank()


def test_results_come_in_rank_order_with_arguments_passed_on(pool: WorkerPool) -> None:
    assert pool.run(add_with_rank, 5, factor=10) == [5, 15, 25, 35]


def test_processes_live_on_between_runs(pool: WorkerPool) -> None:
    first = pids_of(pool)
    assert len(set(first)) == 4
    assert os.getpid() not in first
    assert pids_of(pool) == first


def summed() -> float:
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    return float(value)


def test_collectives_work_on_the_default_group(pool: WorkerPool) -> None:
    assert pool.run(summed) == [10.0] * 4
    assert pool.run(summed) == [10.0] * 4


def scaled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor * (dist.get_rank() + 1) for name, tensor in tensors.items()}


def test_tensors_cross_both_ways_unchanged(pool: WorkerPool) -> None:
    tensors = {
        "big": torch.arange(1_000_000, dtype=torch.float64),
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "empty": torch.empty(0, 4, dtype=torch.int64),
    }
    for rank, result in enumerate(pool.run(scaled, tensors)):
        for name, tensor in tensors.items():
            assert result[name].dtype == tensor.dtype
            assert torch.equal(result[name], tensor * (rank + 1))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_tensors_cost_no_open_files(pool: WorkerPool) -> None:
    before = open_files()
    kept = [pool.run(scaled, {str(index): torch.ones(2) for index in range(50)}) for _ in range(3)]
    assert open_files() == before
    assert len(kept) == 3


def settings() -> tuple[int, int, str]:
    return torch.get_num_threads(), os.sched_getscheduler(0), os.environ["GLOO_SOCKET_IFNAME"]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="scheduler classes are Linux's")
def test_workers_run_one_thread_in_the_batch_class_over_loopback(pool: WorkerPool) -> None:
    here = os.sched_getscheduler(0)
    expected = os.SCHED_BATCH if here == os.SCHED_OTHER else here
    assert pool.run(settings) == [(1, expected, os.environ.get("GLOO_SOCKET_IFNAME", "lo"))] * 4


def leave_the_group() -> None:
    dist.destroy_process_group()


def test_a_run_that_destroys_the_group_is_followed_by_one_with_a_new_group(pool: WorkerPool) -> None:
    before = pids_of(pool)
    pool.run(leave_the_group)
    assert pool.run(summed) == [10.0] * 4
    assert pids_of(pool) == before


# Progress


def count_up(steps: int) -> None:
    for step in range(steps):
        emit({"step": step})


def test_emitted_events_arrive_in_order_of_each_rank(pool: WorkerPool) -> None:
    heard: dict[int, list[int]] = {rank: [] for rank in range(4)}
    pool.run(count_up, 50, on_message=lambda rank, event: heard[rank].append(event["step"]))
    assert heard == {rank: list(range(50)) for rank in range(4)}


def emit_then_wait_for(path: Path) -> bool:
    if dist.get_rank() == 0:
        emit("here")
    return until(path.exists)


def test_events_arrive_while_the_run_goes_on(pool: WorkerPool, tmp_path: Path) -> None:
    told = tmp_path / "told"
    assert pool.run(emit_then_wait_for, told, on_message=lambda rank, event: told.touch()) == [True] * 4


def test_emit_outside_a_worker_says_so() -> None:
    with pytest.raises(MeshwrightError, match="inside a function that a WorkerPool runs"):
        emit("nobody listens")


# Failures


def raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError(f"bad luck on {rank}")
    dist.barrier()


def test_a_raising_rank_is_named_while_the_others_sit_in_a_collective(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match=r"^rank 2 of 4: ValueError: bad luck on 2") as caught:
        pool.run(raise_on, 2)
    assert caught.value.ranks == (2,)
    assert "in raise_on\n" in str(caught.value)
    assert "worker.py" not in str(caught.value)
    assert "ranks 0, 1, 3 still running, now killed" in str(caught.value)


def raise_everywhere() -> None:
    raise KeyError("missing")


def test_the_same_error_on_all_ranks_is_told_once(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match=r"^ranks 0, 1, 2, 3 of 4: KeyError") as caught:
        pool.run(raise_everywhere)
    assert str(caught.value).count("Traceback") == 1


def test_the_pool_serves_on_with_new_processes_after_a_failure(pool: WorkerPool) -> None:
    before = pids_of(pool)
    with pytest.raises(WorkerError):
        pool.run(raise_on, 0)
    assert alive(before) == []
    assert pool.run(summed) == [10.0] * 4
    assert not set(before) & set(pids_of(pool))


def die_on(rank: int, how: int) -> None:
    dist.barrier()
    if dist.get_rank() == rank:
        if how > 0:
            os._exit(how)
        os.kill(os.getpid(), -how)
    dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize(
    ("how", "told"),
    [(3, "ended with exit code 3"), (-signal.SIGKILL, "killed by SIGKILL"), (-signal.SIGSEGV, "killed by SIGSEGV")],
)
def test_a_dying_rank_is_named_and_not_the_peers_that_lost_it(pool: WorkerPool, how: int, told: str) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerError, match=f"^rank 1 of 4: {told}") as caught:
        pool.run(die_on, 1, how)
    assert time.monotonic() - began < 5
    assert caught.value.ranks == (1,)


def clean_up_with_a_barrier(rank: int) -> None:
    """The bug on one rank ends the process group, whose peers wrap what they see."""
    try:
        if dist.get_rank() == rank:
            dist.destroy_process_group()
            raise ValueError("the bug")
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        raise LookupError("step 7 went wrong") from error


def test_a_lost_peer_is_a_consequence_even_where_the_function_wraps_it(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match=r"^rank 3 of 4: ValueError: the bug") as caught:
        pool.run(clean_up_with_a_barrier, 3)
    assert caught.value.ranks == (3,)


def leave_parent_holding(rank: int) -> None:
    """Die while a child of one's own holds the pipe to the parent open."""
    if dist.get_rank() == rank:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        emit(child)
        os._exit(7)
    dist.barrier()


def test_children_of_a_dead_rank_neither_hide_its_death_nor_survive_it(pool: WorkerPool) -> None:
    children: list[int] = []
    with pytest.raises(WorkerError, match="rank 0 of 4: ended with exit code 7"):
        pool.run(leave_parent_holding, 0, on_message=lambda rank, child: children.append(child))
    assert len(children) == 1
    assert until(lambda: not running(children))


def return_a_lambda() -> Any:
    return lambda: None


def test_a_result_that_cannot_be_pickled_is_an_error_of_the_rank(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match=r"ranks 0, 1, 2, 3 of 4: .*pickle"):
        pool.run(return_a_lambda)


def test_a_function_that_cannot_be_sent_is_refused_and_costs_no_worker(pool: WorkerPool) -> None:
    before = pids_of(pool)
    with pytest.raises(MeshwrightError, match="top of a module"):
        pool.run(lambda: None)
    assert pids_of(pool) == before


def test_workers_that_died_while_idle_are_replaced_and_it_is_said(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    before = pids_of(pool)
    os.kill(before[2], signal.SIGKILL)
    os.waitid(os.P_PID, before[2], os.WEXITED | os.WNOWAIT)
    with caplog.at_level(logging.WARNING):
        assert pool.run(summed) == [10.0] * 4
    assert "rank 2 died while idle" in caplog.text


# Time


def hang_on(*ranks: int) -> None:
    if dist.get_rank() in ranks:
        time.sleep(60)


def test_a_timeout_names_the_hung_ranks_and_where_they_stand(pool: WorkerPool) -> None:
    pids_of(pool)
    began = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"^ranks 1, 3 of 4 still running after 0.5 s") as caught:
        pool.run(hang_on, 1, 3, timeout=0.5)
    assert time.monotonic() - began < 3
    assert caught.value.ranks == (1, 3)
    assert "ranks 0, 2 had finished" in str(caught.value)
    assert str(caught.value).count("in hang_on") == 2
    assert "_bootstrap" not in str(caught.value)


def test_a_stopped_rank_is_named_without_a_stack(pool: WorkerPool) -> None:
    pids = pids_of(pool)
    os.kill(pids[2], signal.SIGSTOP)
    with pytest.raises(WorkerTimeout, match=r"^rank 2 of 4 still running") as caught:
        pool.run(rank_and_pid, timeout=0.3)
    assert "it does not answer" in str(caught.value)
    assert alive(pids) == []


def miss_the_collective(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(60)
    dist.barrier()


def test_a_rank_that_misses_a_collective_is_shown_with_its_stack() -> None:
    with WorkerPool(2, group_timeout=1.0) as workers:
        workers.run(summed)
        with pytest.raises(WorkerError, match=r"rank 0 of 2: RuntimeError: .*Timed out") as caught:
            workers.run(miss_the_collective, 1)
    assert "rank 1 still running" in str(caught.value)
    assert "in miss_the_collective" in str(caught.value).partition("rank 1 stood here")[2]


# Ends


def test_close_leaves_no_process_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    began = open_files()
    workers = WorkerPool(3)
    pids = pids_of(workers)
    assert list(tmp_path.iterdir())
    workers.close()
    assert alive(pids) == []
    assert list(tmp_path.iterdir()) == []
    assert open_files() <= began
    workers.close()
    with pytest.raises(MeshwrightError, match="closed"):
        workers.run(summed)


def test_an_exception_in_the_block_leaves_no_process() -> None:
    pids: list[int] = []

    def fail_in_the_block() -> None:
        with WorkerPool(2) as workers:
            pids.extend(pids_of(workers))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_the_block()
    assert len(pids) == 2
    assert alive(pids) == []


UNCLOSED = """
import os
from meshwright.train.launch import WorkerPool
pool = WorkerPool(2)
print(*pool.run(os.getpid))
"""


def test_a_program_that_ends_without_closing_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", UNCLOSED], env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stderr == ""
    assert len(done.stdout.split()) == 2
    assert running([int(pid) for pid in done.stdout.split()]) == []
    assert list(tmp_path.iterdir()) == []


def emit_pid_and_hang() -> None:
    emit(os.getpid())
    time.sleep(60)


def test_ctrl_c_during_a_run_kills_the_workers(pool: WorkerPool) -> None:
    pids: list[int] = []

    def press(rank: int, pid: int) -> None:
        pids.append(pid)
        if len(pids) == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pool.run(emit_pid_and_hang, on_message=press)
    assert len(pids) == 4
    assert alive(pids) == []


def ignores_interrupts() -> bool:
    signal.raise_signal(signal.SIGINT)
    return True


def test_workers_ignore_ctrl_c_themselves(pool: WorkerPool) -> None:
    assert pool.run(ignores_interrupts) == [True] * 4


FAMILY = """
import os, signal, subprocess, sys, time
from meshwright.train.launch import WorkerPool, emit

def start_a_child():
    emit((os.getpid(), subprocess.Popen(["sleep", "300"]).pid))
    time.sleep(300)

def show(rank, pids):
    print(*pids, flush=True)

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    WorkerPool(2).run(start_a_child, on_message=show, timeout=None)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_program_that_is_killed_leaves_no_worker_no_child_of_one_and_no_file(
    how: signal.Signals, tmp_path: Path
) -> None:
    script, scratch = tmp_path / "family.py", tmp_path / "scratch"
    script.write_text(FAMILY)
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for _ in range(2) for pid in parent.stdout.readline().split()]
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        before = running(pids), list(scratch.iterdir())
        parent.send_signal(how)
    gone = until(lambda: not running([*pids, *map(int, children)]))
    for pid in running(pids):
        os.kill(pid, signal.SIGKILL)
    assert len(pids) == len(before[0]) == 4
    assert len(before[1]) == 1
    assert gone
    assert list(scratch.iterdir()) == []


def sleep_in_a_session_of_its_own() -> None:
    os.setsid()
    emit(os.getpid())
    time.sleep(60)


def test_a_worker_that_left_the_group_is_killed_too(pool: WorkerPool) -> None:
    pids: list[int] = []
    with pytest.raises(WorkerTimeout):
        pool.run(sleep_in_a_session_of_its_own, timeout=0.5, on_message=lambda rank, pid: pids.append(pid))
    assert len(pids) == 4
    assert alive(pids) == []


def be_a_parent(pipe: Connection) -> None:
    workers = WorkerPool(2)
    workers.run(emit_pid_and_hang, on_message=lambda rank, pid: pipe.send(pid), timeout=None)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the kernel ends orphans on Linux only")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # a killed parent removes nothing
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=be_a_parent, args=(theirs,))
    parent.start()
    pids = [ours.recv(), ours.recv()]
    assert running(pids) == pids
    parent.kill()
    parent.join()
    assert until(lambda: not running(pids))


def test_a_pool_made_in_a_passing_thread_outlives_it() -> None:
    made: list[WorkerPool] = []
    thread = threading.Thread(target=lambda: made.append(WorkerPool(2)))
    thread.start()
    thread.join()
    with made[0] as workers:
        assert workers.run(summed) == [3.0, 3.0]


def test_a_run_within_a_run_is_refused(pool: WorkerPool) -> None:
    def run_again(rank: int, event: object) -> None:
        pool.run(summed)

    with pytest.raises(MeshwrightError, match="in a run already"):
        pool.run(count_up, 1, on_message=run_again)


def test_a_pool_needs_a_rank() -> None:
    with pytest.raises(MeshwrightError, match="at least 1"):
        WorkerPool(0)
