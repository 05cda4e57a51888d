"""Two streams, against a reference in small steps of time and against laws."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.overlap import MIB, LayerTime, Ready, Streams, best_bucket, exposed_reduction, one_pass
from tests.cost.build import QUICK

whole = st.integers(0, 8).map(float)
layers = st.lists(st.builds(LayerTime, st.integers(1, 8).map(float), whole, whole), min_size=1, max_size=6)
prefetches = st.integers(0, 3)


class Clock:
    """It ticks: in each tick, computing and the link each do one second of what they have been asked for."""

    def __init__(self, found: list[LayerTime], prefetch: int) -> None:
        self.found, self.prefetch = found, prefetch
        self.link: list[tuple[str, int, float]] = []
        self.gathered: set[int] = set()
        self.asked = self.place = self.now = 0
        self.left = -1.0
        """Seconds of the layer at work; negative where none is."""

    def run(self) -> int:
        """Ticks until all is done."""
        self.settle()
        while self.place < len(self.found) or self.link:
            self.now += 1
            self.left -= 1 if self.left > 0 else 0
            if self.link:
                kind, number, rest = self.link[0]
                self.link[0] = (kind, number, rest - 1)
            self.settle()
        return self.now

    def settle(self) -> None:
        """Everything that takes no time."""
        while self.arrive() or self.end() or self.begin():
            pass

    def arrive(self) -> bool:
        """The link has done the first of what it was asked for."""
        if not self.link or self.link[0][2] > 0:
            return False
        kind, number, _ = self.link.pop(0)
        self.gathered.update({number} if kind == "gather" else ())
        return True

    def end(self) -> bool:
        """A layer is through."""
        if self.left != 0:
            return False
        if self.found[self.place].reduce:
            self.link.append(("reduce", self.place, self.found[self.place].reduce))
        self.place, self.left = self.place + 1, -1.0
        return True

    def begin(self) -> bool:
        """The next layer starts, and asks for those after it."""
        if self.left >= 0 or self.place == len(self.found):
            return False
        asked = self.ask(self.place)
        if self.place not in self.gathered:
            return asked
        self.left = self.found[self.place].compute
        self.ask(self.place + self.prefetch)
        return True

    def ask(self, until: int) -> bool:
        """Gathers that nobody asked for yet."""
        wanted = range(self.asked, min(until + 1, len(self.found)))
        self.link += [("gather", number, self.found[number].gather) for number in wanted if self.found[number].gather]
        self.gathered.update(number for number in wanted if not self.found[number].gather)
        self.asked += len(wanted)
        return len(wanted) > 0


def test_a_layer_that_gathers_nothing_waits_for_no_reduction() -> None:
    """A reduction of 10 beside three layers of 4 that have nothing to gather."""
    assert one_pass([LayerTime(4, reduce=10), *[LayerTime(4)] * 3], Streams()).seconds == 16


@QUICK
@given(layers, prefetches)
def test_a_pass_takes_as_long_as_a_ticking_clock_says(found: list[LayerTime], prefetch: int) -> None:
    assert one_pass(found, Streams(prefetch)).seconds == Clock(found, prefetch).run()


@QUICK
@given(layers, prefetches, st.floats(0, 1))
def test_a_pass_lies_between_the_busiest_stream_and_one_after_the_other(
    found: list[LayerTime], prefetch: int, contention: float
) -> None:
    apart = sum(sum(layer) for layer in found)
    compute, link = (sum(values) for values in ((x.compute for x in found), (x.gather + x.reduce for x in found)))
    passed = one_pass(found, Streams(prefetch))
    assert max(compute, link) <= passed.seconds <= apart
    assert one_pass(found, Streams(overlaps=False)).seconds == apart
    slowed = one_pass(found, Streams(prefetch, contention=contention)).seconds
    assert passed.seconds - 1e-9 <= slowed <= passed.seconds + compute * contention + 1e-9


@pytest.mark.parametrize(("contention", "seconds"), [(0.0, 11.0), (0.5, 12.0), (9.0, 13.7)])
def test_what_runs_side_by_side_slows_computing(contention: float, seconds: float) -> None:
    """A gather of 1, a layer of 5 beside the next gather of 3, a layer of 5. In the 3 seconds at half speed and a half
    more the first layer loses one, at a tenth of its speed 2.7.
    """
    found = one_pass([LayerTime(5, 1), LayerTime(5, 3)], Streams(contention=contention))
    assert found.seconds == pytest.approx(seconds)


gradients = st.lists(st.builds(Ready, st.floats(0, 5), st.integers(0, 400).map(lambda n: n * MIB / 4)), max_size=8)


@QUICK
@given(gradients, st.integers(1, 64), st.floats(0, 1e-3), st.floats(1e6, 1e12))
def test_what_is_exposed_lies_between_nothing_and_all_of_it(
    found: list[Ready], bucket: int, latency: float, bandwidth: float
) -> None:
    def seconds(size: float) -> float:
        return latency + size / bandwidth

    total = sum(layer.bytes for layer in found)
    exposed = exposed_reduction(found, bucket * MIB, seconds)
    calls = math.ceil(total / (bucket * MIB))
    everything = calls * latency + total / bandwidth
    assert 0 <= exposed <= everything * (1 + 1e-9)
    assert exposed >= everything - sum(layer.seconds for layer in found) - 1e-9 * everything


@QUICK
@given(gradients, st.floats(0, 1e-3), st.floats(1e6, 1e12))
def test_no_power_of_two_beats_the_best_bucket(found: list[Ready], latency: float, bandwidth: float) -> None:
    def seconds(size: float) -> float:
        return latency + size / bandwidth

    best = exposed_reduction(found, best_bucket(found, seconds), seconds)
    others = [exposed_reduction(found, 2.0**power * MIB, seconds) for power in range(10)]
    assert best <= min(others) * (1 + 1e-12)


def test_a_slow_start_of_each_call_asks_for_larger_buckets() -> None:
    found = [Ready(0.1, 100 * MIB)] * 8
    small, large = (best_bucket(found, partial(_call, start)) for start in (1e-6, 1e-2))
    assert small < large


def _call(start: float, size: float) -> float:
    return start + size / 1e9
