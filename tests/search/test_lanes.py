"""What processes share of a search: the answer is one process's, and nothing is left behind."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that searches began beside this one, all of which are to be gone in the end."""
    begun: list[Any] = []
    begin = lanes._Other.__init__

    def noted(self: Any, own: list[Any]) -> None:
        begin(self, own)
        begun.append(self._process)

    monkeypatch.setattr(lanes._Other, "__init__", noted)
    yield begun
    assert not any(each.is_alive() for each in begun)


def test_the_answer_is_the_same_however_many_processes_share_the_search(others: list[Any]) -> None:
    alone = told(Search(shared(1)).run())
    assert others == []
    for processes in (2, 3):
        assert told(Search(shared(processes)).run()) == alone
        assert len(others) == processes - 1
        others.clear()


def test_ctrl_c_ends_the_other_processes_and_keeps_the_best(others: list[Any]) -> None:
    def interrupt(_: Progress) -> None:
        if others:
            raise KeyboardInterrupt

    answer = Search(shared(2), progress=interrupt).run()
    assert answer.stopped == "Ctrl-C"
    assert answer.estimate.fits
    assert answer.bound <= Search(shared(1)).run().estimate.step_time_s


def test_a_process_that_is_killed_is_said_and_leaves_no_other(others: list[Any]) -> None:
    def kill(_: Progress) -> None:
        for each in others:
            each.kill()

    with pytest.raises(MeshwrightError, match="a process of the search has died; search with --processes 1"):
        Search(shared(3), progress=kill).run()
