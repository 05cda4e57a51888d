"""The event simulation, against closed forms and against a reference that works in another way."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.schedule import (
    Action,
    Link,
    StageTime,
    Timeline,
    gpipe,
    in_flight,
    one_forward_one_backward,
    orders,
    simulate,
)
from meshwright.errors import PlanError
from tests.cost.build import QUICK

Case = tuple[str, list[StageTime], list[Link], int]
durations = st.integers(0, 50).map(lambda number: number / 4)


def chain(stages: int, forward: float = 0.0, backward: float = 0.0) -> list[Link]:
    """Every stage reads the one before it."""
    return [Link(stage, stage + 1, forward, backward) for stage in range(stages - 1)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Unequal stages; every stage but the first reads one or more of the earlier ones."""
    count = draw(st.integers(1, 5))
    times = [StageTime(*(draw(durations) for _ in range(5))) for _ in range(count)]
    links = []
    for target in range(1, count):
        sources = draw(st.sets(st.integers(0, target - 1), min_size=1, max_size=2))
        links += [Link(source, target, draw(durations), draw(durations)) for source in sorted(sources)]
    return draw(st.sampled_from(["gpipe", "1f1b"])), times, links, draw(st.integers(1, 7))


def run(case: Case, *, norm: float | None = None) -> Timeline:
    """Simulate."""
    schedule, times, links, micro_batches = case
    return simulate(orders(schedule, len(times), micro_batches), times, links, norm=norm)


Task = tuple[int, str, int]


def relaxed(case: Case) -> dict[Task, float]:
    """Start of every action: begin with zero everywhere and push starts up until no rule is broken."""
    schedule, times, links, micro_batches = case
    length = {}
    rules: list[tuple[Task, Task, float]] = []
    for stage, order in enumerate(orders(schedule, len(times), micro_batches)):
        tasks = [(stage, action.kind, action.micro_batch) for action in order]
        length |= {task: times[stage].forward if task[1] == "forward" else times[stage].backward for task in tasks}
        rules += [(before, after, 0.0) for before, after in pairwise(tasks)]
    for number in range(micro_batches):
        for stage in range(len(times)):
            rules.append(((stage, "forward", number), (stage, "backward", number), 0.0))
        for link in links:
            rules.append(((link.source, "forward", number), (link.target, "forward", number), link.forward))
            rules.append(((link.target, "backward", number), (link.source, "backward", number), link.backward))
    starts = dict.fromkeys(length, 0.0)
    changed = True
    while changed:
        changed = False
        for before, after, travel in rules:
            earliest = starts[before] + length[before] + travel
            if earliest > starts[after]:
                starts[after], changed = earliest, True
    return starts


@QUICK
@given(cases())
def test_the_simulation_equals_a_reference_that_relaxes_to_a_fixpoint(case: Case) -> None:
    spans = [span for span in run(case).spans if span.micro_batch is not None]
    assert {(span.stage, span.kind, span.micro_batch): span.start for span in spans} == relaxed(case)


@QUICK
@given(cases(), st.none() | durations)
def test_a_step_ends_with_gradients_then_the_norm_then_the_optimizer(case: Case, norm: float | None) -> None:
    _, times, _, _ = case
    ends = [0.0] * len(times)
    for span in run(case).spans:
        if span.micro_batch is not None:
            ends[span.stage] = max(ends[span.stage], span.end)
    reduced = [end + time.reduce for end, time in zip(ends, times, strict=True)]
    ready = reduced if norm is None else [max(reduced) + norm] * len(times)
    expected = max(end + time.optimizer + time.update for end, time in zip(ready, times, strict=True))
    assert run(case, norm=norm).seconds == expected


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 5), (4, 1), (4, 4), (4, 9), (16, 128)])
def test_equal_stages_take_the_closed_form(schedule: str, stages: int, micro_batches: int) -> None:
    """(M + P - 1) (f + b): Huang 2019; Narayanan 2021, section 2.2."""
    timeline = run((schedule, [StageTime(1.0, 2.0)] * stages, chain(stages), micro_batches))
    assert timeline.seconds == (micro_batches + stages - 1) * 3
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize(("place", "around"), [(0, 0), (1, 1 + 2), (2, 2 + 4)], ids=["first", "middle", "last"])
def test_the_slowest_stage_sets_the_pace_and_the_stages_before_it_start_and_end_the_step(
    place: int, around: float
) -> None:
    """Where the slowest stage is the first, the others' work hides behind its own."""
    times = [StageTime(3.0, 6.0) if stage == place else StageTime(1.0, 2.0) for stage in range(3)]
    assert run(("1f1b", times, chain(3), 8)).seconds == 8 * 9 + around


@QUICK
@given(cases())
def test_a_step_is_never_shorter_than_any_stage_is_busy(case: Case) -> None:
    timeline = run(case)
    assert all(busy <= timeline.seconds + 1e-9 for busy in timeline.busy)


@QUICK
@given(cases())
def test_no_stage_does_two_things_at_once(case: Case) -> None:
    spans = run(case).spans
    for before, after in pairwise(spans):
        assert before.stage != after.stage or before.end <= after.start


@QUICK
@given(cases(), st.integers(0, 4), durations)
def test_a_faster_stage_never_makes_a_step_slower(case: Case, number: int, gain: float) -> None:
    schedule, times, links, micro_batches = case
    faster = [
        time._replace(forward=max(0.0, time.forward - gain)) if place == number else time
        for place, time in enumerate(times)
    ]
    assert run((schedule, faster, links, micro_batches)).seconds <= run(case).seconds


@QUICK
@given(cases(), durations)
def test_a_faster_link_never_makes_a_step_slower(case: Case, gain: float) -> None:
    schedule, times, links, micro_batches = case
    faster = [link._replace(forward=max(0.0, link.forward - gain)) for link in links]
    assert run((schedule, times, faster, micro_batches)).seconds <= run(case).seconds


@QUICK
@given(st.integers(1, 8), st.integers(1, 12))
def test_gpipe_holds_all_micro_batches_and_1f1b_as_many_as_stages_follow(stages: int, micro_batches: int) -> None:
    held = {
        name: [in_flight(order, "backward").early for order in orders(name, stages, micro_batches)]
        for name in ("gpipe", "1f1b")
    }
    assert held["gpipe"] == [micro_batches] * stages
    assert held["1f1b"] == [min(stages - stage, micro_batches) for stage in range(stages)]


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
def test_every_micro_batch_goes_once_each_way(order: object) -> None:
    actions = order(1, 4, 6)  # type: ignore[operator]
    assert sorted(actions) == sorted(Action(kind, number) for kind in ("forward", "backward") for number in range(6))  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zbv", "dualpipev"])
def test_a_schedule_that_cannot_be_estimated_yet_is_refused(schedule: str) -> None:
    with pytest.raises(PlanError, match=f"cannot estimate schedule '{schedule}' yet; 'gpipe' or '1f1b' can be"):
        orders(schedule, 2, 2)


def test_stages_that_read_in_a_circle_are_refused() -> None:
    with pytest.raises(PlanError, match="stages 0, 1 wait for each other in a circle"):
        simulate(orders("gpipe", 2, 1), [StageTime(1, 1)] * 2, [Link(0, 1), Link(1, 0)])
