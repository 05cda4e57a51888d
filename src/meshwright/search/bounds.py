"""What no plan of an outer choice can beat, before its layers are costed: by FLOPs alone, then by their computing.

The work of a step is what its layers compute for the whole batch; N devices do it at N times the pace at best, and a
pipeline of P stages waits besides. With c_s = f_s + b_s the seconds of a micro-batch on stage s and W their sum, 1f1b
takes at least W + max_s ((M - 1) c_s - min(P - 1 - s, M - 1) f_s) (`search.stages`), however the layers are cut. If f_s
is at most r c_s on each stage, the largest term is least where all are equal:

    W + W / sum_s 1 / ((M - 1) - r min(P - 1 - s, M - 1))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from meshwright.cost.calibration import Calibration, DeviceConstants
from meshwright.model.spec import Layer
from meshwright.plan.degrees import Degrees
from meshwright.search.bench import Bench
from meshwright.search.choice import Choice
from meshwright.search.frontier import Floats
from meshwright.search.problem import Problem


def one_f_one_b_bound(both: ArrayLike, ratio: ArrayLike, stages: int, micro_batches: int) -> Floats:
    """Seconds that M micro-batches take at least on P stages which together take `both` for one; forward takes no more
    than `ratio` of it on each.

    >>> round(float(one_f_one_b_bound(4.0, 0.0, stages=4, micro_batches=8)), 6)
    11.0
    >>> float(one_f_one_b_bound(4.0, 1.0, stages=4, micro_batches=3))
    4.0
    """
    whole, rest = np.asarray(both, dtype=float), micro_batches - 1
    if rest == 0:
        return whole
    waited = np.minimum(stages - 1 - np.arange(stages), rest)
    with np.errstate(divide="ignore"):  # where a stage may wait for all that it takes, nothing is known but `both`
        found: Floats = whole + whole / (1 / (rest - np.asarray(ratio)[..., None] * waited)).sum(axis=-1)
    return found


def without_losses(calibration: Calibration) -> Calibration:
    """The same machines, with products of any shape as fast as the largest, and nothing to launch or start."""
    return calibration.model_copy(
        update={
            "devices": {name: _without(constants) for name, constants in calibration.devices.items()},
            "others": _without(calibration.others),
        }
    )


def _without(constants: DeviceConstants) -> DeviceConstants:
    perfect = {"units": 1, "inner": 0.0, "start": 0.0, "launch": 0.0, "unaligned": 1.0, "unaligned_batched": 1.0}
    return constants.model_copy(update=perfect)


def alone(problem: Problem, calibration: Calibration, tp: int = 1) -> Bench:
    """The whole batch on one device without losses, or on a few that share all of its layers."""
    degrees = Degrees(tp=tp, ulysses=1, cp=1, pp=1, ep=1, etp=tp, dp=1, rank_order="megatron")
    choice = Choice(degrees, degrees.mesh(), micro_batches=1, sp=problem.wishes.scatters)
    return Bench(problem, choice, without_losses(calibration))


def least_step(problem: Problem, calibration: Calibration) -> float:
    """Seconds that a step takes at least by its FLOPs."""
    return whole_work(alone(problem, calibration)).total.both / problem.devices


def whole_work(bench: Bench) -> "Floor":
    """Of the whole batch on one device: as parts of it, however small, no device does it faster."""
    counts: dict[int, tuple[Layer, int]] = {}
    for layer in bench.problem.model.layers:
        counts[id(layer.stack)] = layer, counts.get(id(layer.stack), (layer, 0))[1] + 1
    return Floor(tuple(_Kind(layer, count, least_of(bench, layer)) for layer, count in counts.values()))


class Times(NamedTuple):
    """Seconds of one layer."""

    both: float
    forward: float

    @property
    def backward(self) -> float:
        """The other way."""
        return self.both - self.forward


class _Kind(NamedTuple):
    """Equal layers, with the device-seconds of one of them for the whole batch."""

    layer: Layer
    number: int
    times: Times


def least_of(bench: Bench, layer: Layer) -> Times:
    """Of one layer, with nothing computed again, and no gradients added up: states may shard these."""
    cost = bench.computed(layer, "none")
    return Times(cost.forward.compute + cost.backward.compute, cost.forward.compute)


@dataclass(frozen=True)
class Floor:
    """What the layers of a model take at least, kind by kind."""

    kinds: tuple[_Kind, ...]

    @cached_property
    def total(self) -> Times:
        """Of all layers for the whole batch, in device-seconds."""
        return _total((each.times, each.number) for each in self.kinds)

    def on(self, bench: Bench, devices: int) -> "Floor":
        """Of a micro-batch on a group of so many devices, with the heaviest kind costed as it lies there."""
        share = 1 / (bench.choice.micro_batches * devices)
        heaviest = max(self.kinds, key=lambda each: each.number * each.times.both)
        scaled = (each._replace(times=Times(*(share * time for time in each.times))) for each in self.kinds)
        return Floor(
            tuple(
                each._replace(times=least_of(bench, each.layer)) if each.layer is heaviest.layer else each
                for each in scaled
            )
        )

    def of(self, layer: Layer) -> Times:
        """Of one such layer."""
        return next(each.times for each in self.kinds if each.layer.stack is layer.stack)

    def number(self, layer: Layer) -> int:
        """How many such layers there are."""
        return next(each.number for each in self.kinds if each.layer.stack is layer.stack)

    @cached_property
    def ratio(self) -> float:
        """Of the seconds of a layer, those of forward, at most."""
        return max((each.times.forward / each.times.both for each in self.kinds if each.times.both), default=0.0)

    @cached_property
    def numbered(self) -> float:
        """Both ways, of the numbered layer that takes least."""
        return min((each.times.both for each in self.kinds if each.layer.index is not None), default=0.0)

    @cached_property
    def head(self) -> float:
        """Both ways, of what stands after the numbered layers."""
        found = 0.0
        for each in reversed(self.kinds):
            if each.layer.index is not None:
                break
            found += each.number * each.times.both
        return found


def _total(kinds: Iterable[tuple[Times, int]]) -> Times:
    both, forward = zip(*((count * times.both, count * times.forward) for times, count in kinds), strict=True)
    return Times(sum(both), sum(forward))
