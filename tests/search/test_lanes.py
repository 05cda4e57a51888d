"""What processes share of a search: the answer is one process's, and nothing is left behind."""

import multiprocessing
import os
import signal
from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.errors import MeshwrightError
from meshwright.search import lanes
from meshwright.search.answer import Answer, Progress
from meshwright.search.planner import Search
from meshwright.search.problem import Problem, Wishes

ASKED = Problem(
    mw.model("llama-3.1-8b"),
    mw.cluster("4x8xa100-40gb"),
    mw.recipe(global_batch=64, sequence=4096),
    Wishes(time_limit=120, gap=0.002, zero=1),
)


def shared(processes: int) -> Problem:
    """The same, by so many processes."""
    return ASKED._replace(wishes=replace(ASKED.wishes, processes=processes))


def told(answer: Answer) -> tuple[object, ...]:
    """All of an answer but how long it took."""
    families = {name: (each.plan, each.estimate.step_time_s) for name, each in answer.families.items()}
    return answer.plan, answer.bound, families, answer.simulated, answer.front


def test_the_answer_is_the_same_however_many_processes_share_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    begin = lanes._Other.begin
    monkeypatch.setattr(lanes._Other, "begin", lambda self, best: (begun.append(self), begin(self, best))[1])
    alone = told(Search(shared(1)).run())
    assert begun == []
    for processes in (2, 3):
        assert told(Search(shared(processes)).run()) == alone
        assert len({id(each) for each in begun}) == processes - 1
        begun.clear()
    assert multiprocessing.active_children() == []


def test_ctrl_c_ends_the_other_processes_and_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(now: Progress) -> None:
        if multiprocessing.active_children():
            raise KeyboardInterrupt

    answer = Search(shared(2), progress=interrupt).run()
    assert answer.stopped == "Ctrl-C"
    assert answer.estimate.fits
    assert answer.bound <= Search(shared(1)).run().estimate.step_time_s
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_is_said_and_leaves_no_other() -> None:
    def kill(_: Progress) -> None:
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(MeshwrightError, match="a process of the search has died; search with --processes 1"):
        Search(shared(3), progress=kill).run()
    assert multiprocessing.active_children() == []
