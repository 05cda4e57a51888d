"""What the layers of a stage take at least for one micro-batch, one way, whatever the order of their options.

Where every layer gathers its parameters one layer ahead (zero3), the links do the reduction of the layer before and the
gather of the layer after while a layer computes, no more and no less (`cost.overlap.one_pass`): the next layer starts
when both have ended. A pass is a sum over layers then, and what a layer adds depends on its own option alone, but for
the first and the last of each kind. Else communication may fall behind, and all that counts is what there is of it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshwright.cost.overlap import Streams, slowed


class Passing(NamedTuple):
    """Layers for one micro-batch, one way, in seconds of what runs side by side."""

    compute: float
    """With the communication that stands in its way."""
    gather: float
    """Of sharded parameters."""
    reduce: float
    """Of gradients."""
    host: float
    """Launching."""
    apart: bool = True
    """Whether these run side by side at all."""
    pieces: int = 1
    """Of one layer, what is gathered or reduced one after the other."""

    def times(self, count: int) -> "Passing":
        """So many layers."""
        compute, gather, reduce, host, apart, _ = self
        return Passing(count * compute, count * gather, count * reduce, count * host, apart)

    def plus(self, other: "Passing") -> "Passing":
        """Both, one after the other."""
        return Passing(
            self.compute + other.compute,
            self.gather + other.gather,
            self.reduce + other.reduce,
            self.host + other.host,
            other.apart,
        )

    def least(self, alone: float, contention: float) -> float:
        """What layers take at least of which so much communication has nothing beside it, the first gather and the last
        reduction: the links' time; the computing's with what is alone, and with what it loses while the links do the
        rest, since whatever is not beside computing is waited for; and the host's.

        >>> Passing(compute=4.0, gather=2.0, reduce=0.0, host=0.0).least(0.5, contention=0.0)
        4.5
        """
        link = self.gather + self.reduce
        if not self.apart:
            return self.compute + link + self.host
        return max(self.compute + alone + (link - alone) * contention / (1 + contention), link, self.host)


def together(layers: Iterable[Passing]) -> Passing:
    """All of them, one after the other."""
    found = Passing(0.0, 0.0, 0.0, 0.0)
    for each in layers:
        found = found.plus(each)
    return found


class Run(NamedTuple):
    """Layers of one kind, one after the other."""

    options: tuple[Passing, ...]
    """One of them under each option; what they gather and reduce is the same."""
    taken: tuple[int, ...]
    """How many take each."""

    @property
    def all(self) -> Passing:
        """All of them."""
        return together(option.times(count) for option, count in zip(self.options, self.taken, strict=True) if count)

    @property
    def moved(self) -> Passing:
        """What is moved for one of them, and computed under the last option."""
        return self.options[-1]


def pace(layer: Passing, beside: float, contention: float) -> float:
    """Seconds from the start of a layer to that of the next, with so much communication beside it."""
    return max(slowed(layer.compute, beside, contention), beside)


def gathers_ahead(runs: Sequence[Run], streams: Streams) -> bool:
    """Whether a pass is a sum over its layers (see above): a first layer may be there already."""
    first, *others = runs
    there = first.moved.gather > 0 or sum(first.taken) == 1
    apart = streams.prefetch == 1 and first.moved.apart and first.moved.pieces == 1
    return apart and there and all(run.moved.gather > 0 for run in others)


def least_pass(runs: Sequence[Run], streams: Streams, *, ordered: bool = True) -> float:
    """Seconds of a stage whose layers stand in this order, for one micro-batch one way, at least; or in any, where they
    are not `ordered`.

    Four layers of 1 second, two of which compute 3 seconds; gathers of 2 are waited for beside the quick ones:

    >>> quick, slow = Passing(1.0, 2.0, 0.0, 0.0), Passing(3.0, 2.0, 0.0, 0.0)
    >>> least_pass([Run((slow, quick), (2, 2))], Streams())
    11.0
    """
    whole = together(run.all for run in runs)
    if not ordered:
        alone = min(run.moved.gather for run in runs) + min(run.moved.reduce for run in runs)
        alone /= max(run.moved.pieces for run in runs)
        return whole.least(alone, streams.contention)
    alone = (runs[0].moved.gather + runs[-1].moved.reduce) / max(run.moved.pieces for run in runs)
    if not gathers_ahead(runs, streams):
        return whole.least(alone, streams.contention)
    reduced = [0.0, *(run.moved.reduce for run in runs[:-1])]
    gathered = [*(run.moved.gather for run in runs[1:]), 0.0]
    paced = sum(_paced(*each, streams.contention) for each in zip(runs, reduced, gathered, strict=True))
    return max(alone + paced, whole.host)


def _paced(run: Run, before: float, after: float, contention: float) -> float:
    """The layers of a kind, between one that reduces so much and one that gathers so much. Which option the first and
    the last of them take is not known.
    """
    own = run.moved
    inside = [pace(option, own.reduce + own.gather, contention) for option in run.options]
    found = sum(count * seconds for count, seconds in zip(run.taken, inside, strict=True))
    ends = [before + after] if sum(run.taken) == 1 else [before + own.gather, own.reduce + after]
    for beside in ends:
        found += min(
            pace(option, beside, contention) - seconds for option, seconds in zip(run.options, inside, strict=True)
        )
    return found
