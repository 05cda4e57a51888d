"""The best split of a sequence of layers into stages, each with one way out of its frontier.

The objective is a sum and a maximum over stages: sum of c_s + largest of g_s + largest of e_s. Of P stages that take
c_s = f_s + b_s seconds for a micro-batch, M micro-batches take under 1f1b at least that with

    g_s = (M - 1) c_s - min(P - 1 - s, M - 1) f_s

(the first micro-batch passes all stages; when it is back at stage s, that has run at most P - 1 - s other forwards, and
has the rest of M - 1 micro-batches before it); exactly that where all are alike: (M + P - 1) c (Narayanan 2021, section
2.2.1). e_s is what ends a step. For a limit on the largest g_s the least sum is a shortest path; the limits worth
trying are the stages' own, from the least upwards, until the limit alone costs more than what is found.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from meshwright.plan.orders import round_size
from meshwright.plan.words import Schedule
from meshwright.search.frontier import Floats

StageWays: TypeAlias = Callable[[int, int, int], Floats]
"""(stage, first layer, layer after the last) → ways of that stage, [ways, columns]: the sum's term, the maximum's, and
that of the end. Empty where none fits into its memory."""


Ranges: TypeAlias = Sequence[tuple[int, int]]


class Split(NamedTuple):
    """Where the stages begin and end, and the way that each takes."""

    objective: float
    cuts: tuple[int, ...]
    """The first layer of each stage, and the number of layers."""
    ways: tuple[int, ...]


class _Piece(NamedTuple):
    """One way of one stage."""

    first: int
    after: int
    way: int
    seconds: float
    peak: float
    end: float


def objective(terms: Sequence[tuple[float, float, float]]) -> float:
    """Of stages, each with its term of the sum, of the maximum, and of the end.

    >>> objective([(3.0, 9.0, 1.0), (3.0, 9.0, 0.0)])
    16.0
    """
    seconds, peaks, ends = zip(*terms, strict=True)
    return float(sum(seconds) + max(peaks) + max(ends))


def one_f_one_b(stage: int, stages: int, micro_batches: int, forward: float, backward: float) -> tuple[float, float]:
    """The terms of the sum and of the maximum of one stage under 1f1b (see above)."""
    both = forward + backward
    return both, (micro_batches - 1) * both - min(stages - 1 - stage, micro_batches - 1) * forward


def in_flight(schedule: Schedule, groups: int, virtual: int, micro_batches: int) -> Floats:
    """Micro-batches that each group of a pipeline holds at most, in the mean over its `virtual` stages; for schedules
    other than 1f1b and interleaved, one at least (`plan.orders`).

    >>> in_flight("1f1b", 4, 1, 8).tolist(), in_flight("interleaved", 4, 2, 8).tolist()
    ([4.0, 3.0, 2.0, 1.0], [5.5, 4.5, 3.5, 2.5])
    """
    behind, found = np.arange(groups - 1, -1, -1), np.ones(groups)
    if schedule == "1f1b":
        found = np.minimum(behind + 1.0, micro_batches)
    elif schedule == "interleaved":
        ahead = (virtual - 1) * round_size(groups, micro_batches) + 2 * behind
        found = np.minimum(ahead + 1.0, virtual * micro_batches) / virtual
    return found


def most_in_flight(schedule: Schedule, groups: int, virtual: int, micro_batches: int) -> Floats:
    """Of these, what one stage of each group holds at most, at an instant when its group holds as many as it ever does:
    the first backward of an interleaved pipeline, when the group's first stage has a round's, or what it was ahead.

    >>> most_in_flight("interleaved", 4, 2, 8).tolist()
    [7.0, 5.0, 4.0, 4.0]
    """
    if schedule != "interleaved":
        return in_flight(schedule, groups, virtual, micro_batches)
    ahead = np.maximum(2.0 * np.arange(groups - 1, -1, -1) + 1, round_size(groups, micro_batches))
    found: Floats = np.minimum(ahead, micro_batches)
    return found


def best_split(
    layers: int, stages: int, ways: StageWays, *, below: float = np.inf, ranges: Ranges | None = None
) -> Split | None:
    """The split of least objective, exactly; none where there is none below `below`. Each stage has a layer or more;
    `ranges` are the first and last place where each stage may end, where they are known to be fewer than all.

    Five layers of 1 second on 2 stages; with 4 micro-batches, were forwards free, the stage of 3 layers is passed four
    times:

    >>> split = best_split(5, 2, lambda stage, first, after: np.array([[after - first, 3 * (after - first), 0.0]]))
    >>> split.objective, split.cuts
    (14.0, (0, 2, 5))
    """
    if ranges is None:
        ranges = [(stage + 1, layers - stages + stage + 1) for stage in range(stages - 1)]
    pieces = _pieces((*ranges, (layers, layers)), ways)
    if not all(pieces):
        return None
    best: Split | None = None
    for end in sorted({piece.end for row in pieces for piece in row}):
        found = _with_end(pieces, layers, end, below if best is None else best.objective)
        best = found or best
    return best


def _pieces(ranges: Ranges, ways: StageWays) -> list[list[_Piece]]:
    found: list[list[_Piece]] = []
    starts: list[int] = [0]
    for stage, (least, most) in enumerate(ranges):
        row: list[_Piece] = []
        for first in starts:
            for after in range(max(first + 1, least), most + 1):
                table = ways(stage, first, after).tolist()
                row += [_Piece(first, after, way, *costs) for way, costs in enumerate(table)]
        found.append(row)
        starts = sorted({piece.after for piece in row})
    return found


def _with_end(pieces: Sequence[Sequence[_Piece]], layers: int, end: float, below: float) -> Split | None:
    """The best whose stages all end within `end`, if it is below."""
    allowed = [[piece for piece in row if piece.end <= end] for row in pieces]
    total = _least_sum(allowed, layers, np.inf)
    if total is None:
        return None
    peaks, best = np.unique([piece.peak for row in allowed for piece in row]).tolist(), None
    first = bisect_left(peaks, True, key=lambda peak: _least_sum(allowed, layers, peak) is not None)
    for peak in peaks[first:]:
        if total[0] + peak >= below:
            break
        found = _least_sum(allowed, layers, peak)
        if found is None:
            raise AssertionError("a higher limit allows what a lower one does")
        chosen = found[1]
        value = objective([(piece.seconds, piece.peak, piece.end) for piece in chosen])
        if value < below:
            best = Split(value, (*(piece.first for piece in chosen), layers), tuple(piece.way for piece in chosen))
            below = value
    return best


def _least_sum(pieces: Sequence[Sequence[_Piece]], layers: int, peak: float) -> tuple[float, tuple[_Piece, ...]] | None:
    """The least sum of stages none of whose terms of the maximum is above `peak`."""
    reached: dict[int, tuple[float, tuple[_Piece, ...]]] = {0: (0.0, ())}
    for row in pieces:
        after: dict[int, tuple[float, tuple[_Piece, ...]]] = {}
        for piece in row:
            if piece.peak <= peak and piece.first in reached:
                total, chosen = reached[piece.first]
                if piece.after not in after or total + piece.seconds < after[piece.after][0]:
                    after[piece.after] = total + piece.seconds, (*chosen, piece)
        reached = after
    return reached.get(layers)
