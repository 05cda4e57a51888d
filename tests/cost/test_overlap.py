"""Two streams, against a reference in small steps of time and against laws."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.overlap import MIB, LayerTime, Ready, Reduction, Streams, one_pass
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


sizes = st.integers(0, 400).map(lambda n: n * MIB / 4)
gradients = st.lists(st.builds(Ready, st.floats(0, 5).map(LayerTime), sizes), max_size=8)


def reduction(found: list[Ready], latency: float, bandwidth: float) -> Reduction:
    """Of layers that nothing else runs beside."""
    backward = sum(layer.time.compute for layer in found)
    return Reduction(tuple(found), lambda size: latency + size / bandwidth, backward)


@QUICK
@given(gradients, st.integers(1, 64), st.floats(0, 1e-3), st.floats(1e6, 1e12))
def test_what_is_exposed_lies_between_nothing_and_all_of_it(
    found: list[Ready], bucket: int, latency: float, bandwidth: float
) -> None:
    total = sum(layer.bytes for layer in found)
    exposed = reduction(found, latency, bandwidth).exposed(bucket * MIB)
    calls = math.ceil(total / (bucket * MIB))
    everything = calls * latency + total / bandwidth
    assert 0 <= exposed <= everything * (1 + 1e-9)
    assert exposed >= everything - sum(layer.time.compute for layer in found) - 1e-9 * everything


@QUICK
@given(gradients, st.floats(0, 1e-3), st.floats(1e6, 1e12))
def test_no_power_of_two_beats_the_best_bucket(found: list[Ready], latency: float, bandwidth: float) -> None:
    one = reduction(found, latency, bandwidth)
    best = one.exposed(one.best_bucket)
    assert best <= min(one.exposed(2.0**power * MIB) for power in range(10)) * (1 + 1e-12)


def test_reductions_take_their_turn_on_the_links_with_gathers() -> None:
    """By hand: layers of 1, 1 and 1, of which the last gathers for 10 from the start on. Gradients of 5 of the first
    wait for that gather; the last backward ends at 11, its reductions at 15.
    """
    layers = (Ready(LayerTime(1), 5), Ready(LayerTime(1), 0), Ready(LayerTime(1, gather=10), 0))
    alone = one_pass([layer.time for layer in layers], Streams(prefetch=2)).seconds
    assert alone == 11
    assert Reduction(layers, lambda size: size, alone, prefetch=2).exposed(bucket=5) == 4


busy = st.builds(LayerTime, whole, whole, whole)


@QUICK
@given(st.lists(st.builds(Ready, busy, sizes), min_size=1, max_size=5), st.integers(0, 4), whole, whole, prefetches)
def test_a_layer_that_takes_longer_never_shortens_backward_and_reduction(
    found: list[Ready], place: int, computing: float, gather: float, prefetch: int
) -> None:
    at = place % len(found)
    longer = found[at].time._replace(compute=found[at].time.compute + computing, gather=found[at].time.gather + gather)
    times = []
    for time in (found[at].time, longer):
        ready = [*found[:at], found[at]._replace(time=time), *found[at + 1 :]]
        backward = one_pass([layer.time for layer in ready], Streams(prefetch)).seconds
        times.append(backward + Reduction(tuple(ready), lambda size: size / MIB, backward, prefetch).exposed(MIB))
    assert times[0] <= times[1] * (1 + 1e-12)


def test_a_slow_start_of_each_call_asks_for_larger_buckets() -> None:
    found = (Ready(LayerTime(0.1), 100 * MIB),) * 8
    small, large = (Reduction(found, partial(_call, start), 0.8).best_bucket for start in (1e-6, 1e-2))
    assert small < large


def _call(start: float, size: float) -> float:
    return start + size / 1e9
