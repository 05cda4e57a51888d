"""The learning rate of a step: a function of its number alone, so that a resumed run goes on where it was."""

import math
from collections.abc import Callable

from meshwright.recipe.run import Schedule, Shape


def share_of_peak(schedule: Schedule, step: int, steps: int) -> float:
    """What a step (the first is 0) of a run of `steps` takes of the optimizer's learning rate.

    It rises linearly over the warm-up, so that the first step already learns: (step + 1) / (warm-up + 1). Then, with x
    from 0 to 1 over what is left and f the floor: `constant` 1; `linear` 1 - (1 - f) x; `cosine`
    f + (1 - f) (1 + cos πx) / 2 (Loshchilov and Hutter 2017, equation 5); `wsd` 1 until the decay, then linear
    (Hu 2024, section 4.2).

    >>> cosine = Schedule(shape="cosine", warm_up=4, floor=0.1)
    >>> [round(share_of_peak(cosine, step, 105), 3) for step in (0, 3, 4, 54, 104)]
    [0.2, 0.8, 1.0, 0.55, 0.1]
    >>> wsd = Schedule(shape="wsd", decay=10)
    >>> [round(share_of_peak(wsd, step, 100), 3) for step in (0, 90, 95, 99)]
    [1.0, 1.0, 0.5, 0.1]
    """
    if step < schedule.warm_up:
        return (step + 1) / (schedule.warm_up + 1)
    return _SHAPES[schedule.shape](schedule, step, steps)


def _progress(first: int, step: int, last: int) -> float:
    """From 0 at the first step to 1 at the last."""
    return min(1.0, (step - first) / max(1, last - first))


def _constant(schedule: Schedule, step: int, steps: int) -> float:
    return 1.0


def _linear(schedule: Schedule, step: int, steps: int) -> float:
    return 1.0 - (1.0 - schedule.floor) * _progress(schedule.warm_up, step, steps - 1)


def _cosine(schedule: Schedule, step: int, steps: int) -> float:
    x = _progress(schedule.warm_up, step, steps - 1)
    return schedule.floor + (1.0 - schedule.floor) * (1.0 + math.cos(math.pi * x)) / 2


def _wsd(schedule: Schedule, step: int, steps: int) -> float:
    """The decay ends one step after the last, where the share would be the floor."""
    decay = schedule.decay or max(1, steps // 10)
    return 1.0 - (1.0 - schedule.floor) * max(0.0, (step - (steps - decay)) / decay)


_SHAPES: dict[Shape, Callable[[Schedule, int, int], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,
}
