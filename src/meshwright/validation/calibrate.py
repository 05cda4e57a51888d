"""The constants of a calibration, fitted to measured step times."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.calibration import Calibration
from meshwright.errors import MeshwrightError
from meshwright.plan.rules import Inputs
from meshwright.validation.constants import Constant, apply, constants_for, guessed
from meshwright.validation.fit import Fit, Parameter, fit, weights
from meshwright.validation.frameworks import Framework, framework_of
from meshwright.validation.predictor import Job, Predictor
from meshwright.validation.rows import Measured
from meshwright.validation.setting import setting_of
from meshwright.validation.unusable import Unusable

Floats = NDArray[np.float64]
MOST = {"A": 24, "B": 8}
"""Rows of one source and grade that a fit takes, spread evenly over those that can be used."""
FAMILY_SPREAD = 0.03
"""The standard deviation of a framework family's factor, of which nothing else is known."""
_STEP = 0.03  # of a constant's logarithm, for slopes
LEAST = 8
"""Fewer rows than this are not fitted to."""


@dataclass(frozen=True)
class Calibrated:
    """A calibration with what it was fitted to."""

    calibration: Calibration
    parameters: tuple[Parameter, ...]
    fit: Fit
    rows: dict[str, int]
    """Of each source, how many."""
    errors: dict[str, float]
    """Of each source, the median of absolute errors, family factors included."""


@dataclass(frozen=True)
class _Case:
    row: Measured
    inputs: Inputs
    framework: Framework

    @property
    def device(self) -> str:
        return self.inputs.cluster.pools[0].device


def unrelated(source: str, rows: Sequence[Measured]) -> list[Measured]:
    """The rows that a blind prediction of a source may be fitted to."""
    own = [row for row in rows if row.source == source]
    labs = {framework_of(row).lab for row in own}
    families = {framework_of(row).family for row in own}
    return [row for row in rows if framework_of(row).lab not in labs and framework_of(row).family not in families]


def chosen(rows: Iterable[Measured]) -> list[_Case]:
    """Timed rows that a plan can say, of each source and grade so many at most. Raises MeshwrightError where there are
    too few.
    """
    usable: dict[tuple[str, str], list[Measured]] = {}
    for row in rows:
        if row.seconds is not None and not row.ran_out and row.grade in MOST:
            usable.setdefault((row.source, row.grade), []).append(row)
    cases: list[_Case] = []
    for (_, grade), found in usable.items():
        cases += _of_source(found, MOST[grade])
    if len(cases) < LEAST:
        raise MeshwrightError(f"a calibration is fitted to {LEAST} timed rows or more; {len(cases)} can be used")
    return cases


def _of_source(rows: Sequence[Measured], most: int) -> list[_Case]:
    found: list[_Case] = []
    stride = max(1, len(rows) / most)
    for place in range(min(most, len(rows))):
        row = rows[int(place * stride)]
        try:
            found.append(_Case(row, setting_of(row), framework_of(row)))
        except Unusable:
            continue
    return found


def calibrate(
    rows: Iterable[Measured],
    base: Calibration,
    *,
    name: str,
    told: Callable[[int, float], None] = lambda step, cost: None,
) -> Calibrated:
    """Fit the constants of the devices that rows ran on, and a factor for each framework family, from a base."""
    cases = chosen(rows)
    devices = list(dict.fromkeys(case.device for case in cases))
    constants = constants_for(devices)
    families = sorted({case.framework.family for case in cases})
    of_family = np.array([[case.framework.family == family for family in families] for case in cases], float)
    parameters = (
        *(Parameter(each.label, each.guess, each.spread, each.low, each.high, each.source) for each in constants),
        *(Parameter(f"family {family}", 1.0, FAMILY_SPREAD, 0.5, 2.0) for family in families),
    )
    measured = np.array([math.log(case.row.seconds or 1.0) for case in cases])
    count = len(constants)
    with Predictor([case.inputs for case in cases]) as predictor:
        problem = _Problem(predictor, base, constants, [case.device for case in cases], devices)

        def predict(values: Floats) -> Floats:
            factors: Floats = of_family @ np.log(values[count:])
            return problem.times(values[:count]) + factors

        def slopes(values: Floats, predicted: Floats) -> Floats:
            bare = predicted - of_family @ np.log(values[count:])
            return np.hstack([problem.slopes(values[:count], bare), of_family])

        found = fit(parameters, measured, weights([case.row.source for case in cases]), predict, slopes, told=told)
    return _calibrated(_Asked(base, name, constants, parameters, families, cases), found)


class _Asked(NamedTuple):
    """What a calibration is made from besides the fit."""

    base: Calibration
    name: str
    constants: Sequence[Constant]
    parameters: tuple[Parameter, ...]
    families: Sequence[str]
    cases: Sequence[_Case]


class _Problem:
    """Times of all rows as functions of the constants."""

    def __init__(
        self,
        predictor: Predictor,
        base: Calibration,
        constants: Sequence[Constant],
        on: Sequence[str],
        devices: Sequence[str],
    ) -> None:
        self.predictor, self.base, self.constants, self.devices = predictor, base, constants, devices
        self.all = list(range(len(on)))
        self.touched = [[row for row in self.all if constant.touches(on[row])] for constant in constants]

    def times(self, values: Floats) -> Floats:
        return self.predictor.times([Job(self._with(values), self.all)])[0]

    def slopes(self, values: Floats, times: Floats) -> Floats:
        steps = [_STEP if value * math.exp(_STEP) <= each.high else -_STEP for value, each in self._pairs(values)]
        jobs = [Job(self._with(_moved(values, place, step)), self.touched[place]) for place, step in enumerate(steps)]
        found = self.predictor.times(jobs)
        columns = [np.nan_to_num((moved - times) / step) for moved, step in zip(found, steps, strict=True)]
        return np.column_stack(columns)

    def _with(self, values: Floats) -> Calibration:
        return apply(self.base, self.constants, values.tolist(), self.devices)

    def _pairs(self, values: Floats) -> list[tuple[float, Constant]]:
        return list(zip(values.tolist(), self.constants, strict=True))


def _moved(values: Floats, place: int, step: float) -> Floats:
    moved = values.copy()
    moved[place] *= math.exp(step)
    return moved


def _calibrated(asked: _Asked, found: Fit) -> Calibrated:
    count, cases = len(asked.constants), asked.cases
    tiled = (name for name, reached in asked.base.devices.items() if reached.units > 1)  # CPUs are nothing like these
    devices = {*tiled, *(case.device for case in cases)}
    rows = Counter(case.row.source for case in cases)
    rounded = [float(f"{value:.4g}") for value in found.values]
    fitted = apply(guessed(asked.base), asked.constants, rounded[:count], sorted(devices))
    text = f"a robust fit to {len(cases)} published step times of {', '.join(sorted(rows))}"
    software = dict(zip(asked.families, rounded[count:], strict=True))
    errors = np.abs(np.expm1(found.errors))
    by_source = {
        source: float(np.median([errors[place] for place, case in enumerate(cases) if case.row.source == source]))
        for source in sorted(rows)
    }
    calibration = fitted.model_copy(update={"name": asked.name, "source": text, "software": software})
    return Calibrated(calibration, asked.parameters, found, dict(rows), by_source)
