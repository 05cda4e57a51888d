"""What no plan of an outer choice can beat, before its layers are costed: by FLOPs alone, then by their computing.

The work of a step is what its layers compute for the whole batch; N devices do it at N times the pace at best, and a
pipeline of P stages waits besides. With c_s = f_s + b_s the seconds of a micro-batch on stage s and W their sum, 1f1b
takes at least W + max_s ((M - 1) c_s - min(P - 1 - s, M - 1) f_s) (`search.stages`), however the layers are cut. If f_s
is at most r c_s on each stage, the largest term is least where all are equal:

    W + W / sum_s 1 / ((M - 1) - r min(P - 1 - s, M - 1))
"""

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.cost.calibration import Calibration, DeviceConstants
from meshwright.model.spec import Layer
from meshwright.plan.degrees import Degrees
from meshwright.search.bench import Bench
from meshwright.search.choice import Choice, Option
from meshwright.search.problem import Problem


def one_f_one_b_bound(both: float, forward: float, stages: int, micro_batches: int) -> float:
    """Seconds that M micro-batches take at least on P stages which together take `both` for one, of that `forward`.

    >>> round(one_f_one_b_bound(4.0, 0.0, stages=4, micro_batches=8), 6)
    11.0
    """
    if micro_batches == 1 or both == 0:
        return both
    ratio, rest = forward / both, micro_batches - 1
    terms = [rest - ratio * min(stages - 1 - stage, rest) for stage in range(stages)]
    return both + both / sum(1 / term for term in terms)


def without_losses(calibration: Calibration) -> Calibration:
    """The same machines, with products of any shape as fast as the largest, and nothing to launch or start."""
    return calibration.model_copy(
        update={
            "devices": {name: _without(constants) for name, constants in calibration.devices.items()},
            "others": _without(calibration.others),
        }
    )


def _without(constants: DeviceConstants) -> DeviceConstants:
    perfect = {"units": 1, "inner": 0.0, "start": 0.0, "launch": 0.0, "unaligned": 1.0}
    return constants.model_copy(update=perfect)


def whole_work(problem: Problem, calibration: Calibration) -> "Floor":
    """Of the whole batch on one device without losses: as parts of it, however small, no device does it faster."""
    alone = Degrees(tp=1, ulysses=1, cp=1, pp=1, ep=1, etp=1, dp=1, rank_order="megatron")
    bench = Bench(problem, Choice(alone, (), micro_batches=1), without_losses(calibration))
    counts: dict[int, tuple[Layer, int]] = {}
    for layer in problem.model.layers:
        counts[id(layer.stack)] = layer, counts.get(id(layer.stack), (layer, 0))[1] + 1
    return Floor(tuple(_Kind(layer, count, _least(bench, layer)) for layer, count in counts.values()))


class Times(NamedTuple):
    """Seconds of one layer."""

    both: float
    forward: float


class _Kind(NamedTuple):
    """Equal layers, with the device-seconds of one of them for the whole batch."""

    layer: Layer
    number: int
    times: Times


def _least(bench: Bench, layer: Layer) -> Times:
    """With nothing computed again, and no gradients added up: states may shard these."""
    cost = bench.seconds(layer, Option(None, "none"))
    return Times(cost.forward.compute + cost.backward.compute - cost.adding, cost.forward.compute)


class Floor(NamedTuple):
    """What the layers of a model take at least, kind by kind."""

    kinds: tuple[_Kind, ...]

    @property
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
                each._replace(times=_least(bench, each.layer)) if each.layer is heaviest.layer else each
                for each in scaled
            )
        )

    @property
    def numbered(self) -> float:
        """Both ways, of the numbered layer that takes least."""
        return min((each.times.both for each in self.kinds if each.layer.index is not None), default=0.0)

    @property
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
