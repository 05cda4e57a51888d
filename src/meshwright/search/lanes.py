"""What is open of a search, in lanes that several processes work through side by side.

A lane has the shapes that cut samples, positions and matrices alike, since these share what they cost. Each takes some
steps by itself; then all hear of the best plan of any. What is found depends on lanes and steps, not on how many
processes have the lanes.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.search.answer import Candidate, in_order
from meshwright.search.work import Found, Item, Work

_LANES = 8
_STEPS = 16
"""That a lane takes before it hears of the others."""
_FEW = 64
"""Open choices that are not worth a process more."""


class _Told(NamedTuple):
    """What a lane tells of its steps."""

    next: float
    """Seconds that what comes next takes at least."""
    least: float
    """The same of all that may still be better than the best, what was left out included."""
    best: Candidate | None = None
    """None where it is the one that the lane was told of."""


def dealt(work: Work) -> list[Work]:
    """All that is open, as lanes; those with the least bounds are spread over them."""
    groups: dict[tuple[int, ...], list[Item]] = {}
    for item in sorted(work.heap):
        shape = item.shape
        groups.setdefault((shape.tp, shape.ulysses, shape.cp, shape.ep, shape.etp), []).append(item)
    lanes: list[list[Item]] = [[] for _ in range(min(_LANES, len(groups)))]
    for place, items in enumerate(groups.values()):
        lanes[place % _LANES] += items
    return [work.part(items) for items in lanes]


def _advanced(lane: Work, best: Candidate | None) -> _Told:
    lane.best = best
    lane.advance(_STEPS)
    return _Told(lane.next, min(lane.open, lane.closed), lane.best if lane.best is not best else None)


class Lanes:
    """All that is open of some work, taken out of it; what came of it is put back in the end."""

    def __init__(self, work: Work, processes: int) -> None:
        lanes = dealt(work)
        self._work, self._told = work, [_Told(lane.next, lane.open) for lane in lanes]
        many = len(work.heap) >= _FEW and "fork" in get_all_start_methods()
        self._count = max(1, min(processes if many else 1, len(lanes)))
        self._own = lanes[:: self._count]
        self._others = [_Other(lanes[place :: self._count]) for place in range(1, self._count)]
        work.heap = []

    @property
    def open(self) -> float:
        """Seconds that what is open takes at least."""
        return min((each.next for each in self._told), default=float("inf"))

    def advance(self) -> None:
        """Some steps of each lane."""
        best = self._work.best
        for other in self._others:
            other.begin(best)
        own = [_advanced(lane, best) for lane in self._own]
        self._told = self._in_order([own, *(other.answer() for other in self._others)])
        better = [each.best for each in self._told if each.best is not None]
        self._work.best = min(better, key=in_order) if better else best

    def _in_order(self, shares: list[list[Any]]) -> list[Any]:
        """What each process says of its lanes → of all lanes."""
        found: list[Any] = [None] * len(self._told)
        for place, share in enumerate(shares):
            found[place :: self._count] = share
        return found

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Of what is broken off, the bound of other processes' lanes is kept alone."""
        own = [lane.found for lane in self._own]
        if kind is None:
            found = self._in_order([own, *(other.found() for other in self._others)])
        else:
            found, places = own, range(len(self._told))
            others = [self._told[place].least for place in places if place % self._count]
            self._work.dropped = min([self._work.dropped, *others])
        for other in self._others:
            other.close()
        for part in found:
            self._work.take(part)


class _Other:
    """Another process, with copies of some lanes."""

    def __init__(self, lanes: list[Work]) -> None:
        context = get_context("fork")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, lanes), daemon=True)
        self._process.start()
        there.close()
        self._knows: Candidate | None = lanes[0].best

    def begin(self, best: Candidate | None) -> None:
        """Let it advance its lanes."""
        self._ask("advance", None if best is self._knows else best)
        self._knows = best

    def answer(self) -> list[Any]:
        """What it says, of each of its lanes. Raises MeshwrightError where it is dead."""
        with _said():
            answer: list[Any] = self._pipe.recv()
        return answer

    def found(self) -> list[Found]:
        """What came of its lanes."""
        self._ask("end")
        return self.answer()

    def _ask(self, word: str, best: Candidate | None = None) -> None:
        with _said():
            self._pipe.send((word, best))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise MeshwrightError("a process of the search has died; search with --processes 1") from None


def _serve(pipe: "Connection[Any, Any]", lanes: list[Work]) -> None:
    """What the other process does. Ctrl-C is the first one's affair, whose end ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    best = lanes[0].best
    try:
        while True:
            word, better = pipe.recv()
            if word == "end":
                pipe.send([lane.found for lane in lanes])
                return
            best = better or best
            pipe.send([_advanced(lane, best) for lane in lanes])
    except EOFError:
        return
