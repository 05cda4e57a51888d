"""The nearest number that works, and numbers and lists in words: what the fixes of rules are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral

from meshwright.errors import PlanError
from meshwright.plan.ranks import format_ranks

_REACH = 4096
_ROOM = 60


def nearest_number(target: int, fits: Callable[[int], bool], otherwise: int = 1) -> int:
    """The positive number closest to `target` that fits, the smaller of two; `otherwise` where none is near."""
    for step in range(_REACH):
        for number in (target - step, target + step):
            if number >= 1 and fits(number):
                return number
    return otherwise


def divides(whole: int) -> Callable[[int], bool]:
    """Whether a number divides the whole."""
    return lambda number: whole % number == 0


def nearest_multiple(target: int, unit: int) -> int:
    """The positive multiple of `unit` closest to `target`, the smaller of two."""
    below = target // unit * unit
    return below if below and 2 * (target - below) <= unit else below + unit


def show_mesh(mesh: Mapping[str, object]) -> str:
    """A mesh, or roles, as a plan writes them: '{dp: 2, tp: 4}'."""
    return "{" + ", ".join(f"{axis}: {value}" for axis, value in mesh.items()) + "}"


def show_ranks(ranks: Sequence[int]) -> str:
    """Devices in short, cut off where they are many and without order."""
    text = format_ranks(ranks)
    return text if len(text) <= _ROOM else f"{text[: _ROOM - 3]}..."


def require_whole(**numbers: object) -> None:
    """Raises PlanError for the first that is neither a whole number nor none, by its name.

    >>> require_whole(tp=2, dp=None, pp="2")
    Traceback (most recent call last):
    meshwright.errors.PlanError: pp must be a whole number (got '2')
    """
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise PlanError(f"{name} must be a whole number (got {value!r})")


def listed(words: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
