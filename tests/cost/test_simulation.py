"""The event simulation, against closed forms and against a reference that works in another way."""

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.order_tables import read_table
from meshwright.cost.simulation import Link, SharedPool, StageTime, Tied, Timeline, simulate
from meshwright.errors import PlanError
from meshwright.plan.orders import Order, order_of, orders
from meshwright.plan.words import Schedule
from tests.cost.build import QUICK
from tests.plan.test_orders import places

SCHEDULES: list[Schedule] = ["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"]
durations = st.integers(0, 50).map(lambda number: number / 4)


class Case(NamedTuple):
    """What is simulated."""

    orders: tuple[Order, ...]
    times: list[StageTime]
    links: list[Link]


def chain(stages: int, forward: float = 0.0, backward: float = 0.0) -> list[Link]:
    """Every stage reads the one before it."""
    return [Link(stage, stage + 1, forward, backward) for stage in range(stages - 1)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Unequal stages under every schedule; under the first two, stages read one or two of the earlier ones."""
    schedule, pairs = draw(st.sampled_from(SCHEDULES)), draw(st.booleans())
    groups, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    if schedule == "dualpipev":
        micro_batches += 2 * groups
    if schedule == "interleaved":
        micro_batches = groups * (micro_batches % 3 + 1)
    where = places(schedule, groups)
    times = []
    for _ in where:
        forward, backward, reduce, optimizer, update = (draw(durations) for _ in range(5))
        weight, there, back = (draw(st.integers(0, 4)) / 4 * whole for whole in (backward, forward, backward))
        times.append(StageTime(forward, backward, reduce, optimizer, update, weight, there, back))
    links = chain(len(where))
    if schedule in ("gpipe", "1f1b"):
        links = [
            Link(source, target)
            for target in range(1, groups)
            for source in sorted(draw(st.sets(st.integers(0, target - 1), min_size=1, max_size=2)))
        ]
    links = [link._replace(forward=draw(durations), backward=draw(durations)) for link in links]
    return Case(orders(schedule, where, micro_batches, pairs=pairs), times, links)


def run(case: Case, *, norm: float | None = None) -> Timeline:
    """Simulate."""
    return simulate(*case, norm=norm)


Task = tuple[str, int, int]
"""A kind, a stage (of a message: its link) and a micro-batch."""


def relaxed(case: Case) -> dict[Task, float]:
    """Starts of all actions: begin with zero everywhere and push starts up until no rule is broken."""
    length: dict[Task, float] = {}
    rules: list[tuple[Task, Task]] = []
    within: list[tuple[Task, Task]] = []
    together: dict[Task, tuple[Task, Task]] = {}
    group_of = {action.stage: group for group, order in enumerate(case.orders) for action in order}
    made: dict[int, list[Task]] = {}
    for group, order in enumerate(case.orders):
        made[group] = [(action.kind, action.stage, action.micro_batch) for action in order]
        length |= {task: _seconds(case.times[task[1]], task[0]) for task in made[group]}
        together |= _pairs(case.times, order, made[group], length)
        rules += [(before, after) for before, after in pairwise(made[group]) if not _one(together, before, after)]
        within += [(before, after) for before, after in pairwise(made[group]) if _one(together, before, after)]
    halves = {stage for kind, stage, _ in length if kind == "input"}
    queues: dict[tuple[int, int], list[tuple[int, Task]]] = {}

    def send(place: int, way: str, before: Task, after: Task, travel: float) -> None:
        source, target = group_of[before[1]], group_of[after[1]]
        if source == target:
            rules.append((before, after))
            return
        message = (f"{way} message", place, before[2])
        length[message] = travel
        rules.extend([(before, message), (message, after)])
        queues.setdefault((source, target), []).append((made[source].index(before), message))

    numbers = {number for _, _, number in length}
    for place, link in enumerate(case.links):
        for number in numbers:
            kinds = ["backward" if not _halved(case, stage, number, halves) else "input" for stage in link[:2]]
            there = (("forward", link.source, number), ("forward", link.target, number))
            send(place, "forward", *there, link.forward)
            back = ((kinds[1], link.target, number), (kinds[0], link.source, number))
            send(place, "backward", *back, link.backward)
    for queue in queues.values():
        rules += pairwise([message for _, message in sorted(queue)])
    # A pair ends when its second ends, and starts no sooner than both could.
    rules = [(together.get(one, (one, one))[1], together.get(other, (other, other))[0]) for one, other in rules]
    rules += within
    starts = dict.fromkeys(length, 0.0)
    changed = True
    while changed:
        changed = False
        for before, after in rules:
            earliest = starts[before] + length[before]
            if earliest > starts[after]:
                starts[after], changed = earliest, True
    return {task: start for task, start in starts.items() if "message" not in task[0]}


def _pairs(
    times: list[StageTime], order: Order, made: list[Task], length: dict[Task, float]
) -> dict[Task, tuple[Task, Task]]:
    """The pair of each action that is in one; their lengths become those side by side."""
    together: dict[Task, tuple[Task, Task]] = {}
    for place in order.joined:
        first, last = made[place : place + 2]
        together |= {first: (first, last), last: (first, last)}
        there, back = times[first[1]].forward_sent, times[last[1]].backward_sent
        length |= {first: max(length[first] - there, back), last: max(length[last] - back, there)}
    return together


def _one(together: dict[Task, tuple[Task, Task]], one: Task, other: Task) -> bool:
    return one in together and together[one] == (one, other)


def _seconds(time: StageTime, kind: str) -> float:
    backward = {"backward": time.backward, "input": time.backward - time.weight, "weight": time.weight}
    return time.forward if kind == "forward" else backward[kind]


def _halved(case: Case, stage: int, number: int, halves: set[int]) -> bool:
    return stage in halves and any(
        action.kind == "input" and (action.stage, action.micro_batch) == (stage, number)
        for order in case.orders
        for action in order
    )


@QUICK
@given(cases())
def test_the_simulation_equals_a_reference_that_relaxes_to_a_fixpoint(case: Case) -> None:
    spans = [span for span in run(case).spans if span.micro_batch is not None]
    assert {(span.kind, span.stage, span.micro_batch): span.start for span in spans} == relaxed(case)


@st.composite
def arbitrary(draw: st.DrawFn) -> Case:
    """Any order that could be run one action at a time: actions are drawn among those that are ready."""
    stages, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    groups = draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages))
    groups = [sorted(set(groups)).index(group) for group in groups]
    lists: list[list[tuple[int, int, int]]] = [[] for _ in range(max(groups) + 1)]
    done: set[tuple[int, int, int]] = set()
    halves = {(stage, number): draw(st.booleans()) for stage in range(stages) for number in range(micro_batches)}

    def ready(stage: int, kind: int, number: int) -> bool:
        if kind == 0:
            return stage == 0 or (stage - 1, 0, number) in done
        if kind == 3:
            return (stage, 2, number) in done
        after = stage == stages - 1 or bool({(stage + 1, 1, number), (stage + 1, 2, number)} & done)
        return (stage, 0, number) in done and after

    wanted = [(stage, 0, number) for stage, number in halves]
    wanted += [(stage, 1, number) for (stage, number), cut in halves.items() if not cut]
    wanted += [(stage, kind, number) for (stage, number), cut in halves.items() if cut for kind in (2, 3)]
    while wanted:
        action = draw(st.sampled_from([action for action in wanted if ready(*action)]))
        wanted.remove(action)
        done.add(action)
        lists[groups[action[0]]].append(action)
    times = []
    for _ in range(stages):
        backward = draw(durations)
        times.append(StageTime(draw(durations), backward, weight=draw(st.integers(0, 4)) / 4 * backward))
    links = [link._replace(forward=draw(durations), backward=draw(durations)) for link in chain(stages)]
    return Case(tuple(order_of(actions) for actions in lists), times, links)


@QUICK
@given(arbitrary())
def test_any_order_equals_the_reference(case: Case) -> None:
    spans = [span for span in run(case).spans if span.micro_batch is not None]
    assert {(span.kind, span.stage, span.micro_batch): span.start for span in spans} == relaxed(case)


@QUICK
@given(cases(), st.none() | durations)
def test_a_step_ends_with_gradients_then_the_norm_then_the_optimizer(case: Case, norm: float | None) -> None:
    groups, times = len(case.orders), case.times
    ends, owned = [0.0] * groups, [{action.stage for action in order} for order in case.orders]
    for span in run(case).spans:
        if span.micro_batch is not None:
            ends[span.group] = max(ends[span.group], span.end)
    reduced = [end + sum(times[stage].reduce for stage in own) for end, own in zip(ends, owned, strict=True)]
    ready = reduced if norm is None else [max(reduced) + norm] * groups
    after = [sum(times[stage].optimizer + times[stage].update for stage in own) for own in owned]
    assert run(case, norm=norm).seconds == max(start + time for start, time in zip(ready, after, strict=True))


@QUICK
@given(cases(), st.data())
def test_groups_that_share_a_parameter_sum_its_gradient_when_the_last_of_them_has_its_own(
    case: Case, data: st.DataObject
) -> None:
    before, stages = run(case), len(case.times)
    own = [{action.stage for action in order} for order in case.orders]
    holders = data.draw(st.sets(st.integers(0, stages - 1), min_size=1, max_size=2))
    groups = {group for group, of_group in enumerate(own) if of_group & holders}
    found = simulate(*case, tied=[Tied(tuple(holders), 1.5)])
    spans = [span for span in found.finish if span.kind == "tied"]
    last = max(_has_gradients(before, group) for group in groups)
    assert {(span.group, span.start, span.end) for span in spans} == {(group, last, last + 1.5) for group in groups}


def _has_gradients(step: Timeline, group: int) -> float:
    """When a group has run backward and reduced what is its own."""
    wanted = [span.end for span in step.spans if span.group == group and span.kind not in ("optimizer", "update")]
    return max(wanted)


def test_a_tied_gradient_waits_for_the_first_stages_last_backward() -> None:
    """Two stages of 1 and 2 under 1f1b and four micro-batches: the second is through at 13, the first at 15. With 3
    seconds of the sum and 10 of the second's optimizer: 15 + 3 + 10.
    """
    times = [StageTime(1, 2), StageTime(1, 2, optimizer=10)]
    step = simulate(orders("1f1b", (0, 1), 4), times, [Link(0, 1)], tied=[Tied((0, 1), 3)])
    assert [(span.kind, span.start, span.end) for span in step.finish] == [
        ("tied", 15, 18),
        ("tied", 15, 18),
        ("optimizer", 18, 28),
    ]
    assert step.seconds == 28


def equal(schedule: Schedule, groups: int, micro_batches: int, *, chunks: int = 2, weight: float = 0.0) -> Timeline:
    """Stages of a forward of 1 and a backward of 2, without travel."""
    where = places(schedule, groups, chunks)
    return simulate(
        orders(schedule, where, micro_batches), [StageTime(1.0, 2.0, weight=weight)] * len(where), chain(len(where))
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 5), (4, 1), (4, 4), (4, 9), (16, 128)])
def test_equal_stages_take_the_closed_form(schedule: Schedule, stages: int, micro_batches: int) -> None:
    """(M + P - 1) (f + b): Huang 2019; Narayanan 2021, section 2.2."""
    timeline = equal(schedule, stages, micro_batches)
    assert timeline.seconds == (micro_batches + stages - 1) * 3
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize(("groups", "chunks", "micro_batches"), [(2, 2, 2), (4, 2, 8), (4, 4, 16), (8, 3, 32)])
def test_interleaving_divides_the_bubble(groups: int, chunks: int, micro_batches: int) -> None:
    """(M v + P - 1) (f + b) for stages of 1 / v of the work: Narayanan 2021, section 2.2."""
    assert (
        equal("interleaved", groups, micro_batches, chunks=chunks).seconds == (micro_batches * chunks + groups - 1) * 3
    )


@pytest.mark.parametrize(("groups", "micro_batches"), [(2, 4), (4, 8), (4, 12), (8, 32)])
def test_halves_leave_a_third_of_the_bubble(groups: int, micro_batches: int) -> None:
    """ZB-H1 waits (P - 1) (f + b_input - b_weight), 1f1b (P - 1) (f + b): Qi 2023, table 1."""
    assert equal("zb-h1", groups, micro_batches, weight=1.0).seconds == micro_batches * 3 + (groups - 1) * 1


@pytest.mark.parametrize(("groups", "micro_batches"), [(2, 4), (4, 8), (4, 12), (8, 32)])
def test_zbv_of_equal_thirds_waits_only_at_the_ends(groups: int, micro_batches: int) -> None:
    """Every group works without a gap from its first to its last action (Qi 2023, section 6)."""
    timeline = equal("zbv", groups, micro_batches, weight=1.0)
    for group in range(groups):
        spans = [span for span in timeline.spans if span.group == group]
        assert spans[-1].end - spans[0].start == sum(span.end - span.start for span in spans)


@pytest.mark.parametrize("sent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("groups", "micro_batches"), [(1, 2), (2, 4), (4, 8), (4, 12), (8, 32)])
def test_dualpipe_waits_as_its_authors_say(groups: int, micro_batches: int, sent: float) -> None:
    """(PP / 2 - 1) (F&B + B - 3 W) over PP = 2 P stages (github.com/deepseek-ai/DualPipe, README): a pair F&B takes its
    computing alone, 1 + 2, and F and B by themselves what they send too.
    """
    where = places("dualpipev", groups)
    time = StageTime(1 + sent, 2 + sent, weight=1.0, forward_sent=sent, backward_sent=sent)
    order = orders("dualpipev", where, micro_batches, pairs=True)
    found = simulate(order, [time] * len(where), chain(len(where)))
    assert found.seconds - min(found.busy) == (groups - 1) * (3 + time.backward - 3 * time.weight)
    assert found.hidden == tuple(len(each.joined) * 2 * sent for each in order)


@pytest.mark.parametrize(("groups", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 4, 16)])
def test_pairs_without_anything_to_hide_cost_interleaving_nothing(groups: int, chunks: int, micro_batches: int) -> None:
    where = places("interleaved", groups, chunks)
    order = orders("interleaved", where, micro_batches, pairs=True)
    paired = simulate(order, [StageTime(1.0, 2.0)] * len(where), chain(len(where)))
    assert paired.seconds == equal("interleaved", groups, micro_batches, chunks=chunks).seconds


@QUICK
@given(durations, durations, durations, durations)
def test_a_pair_takes_what_two_streams_and_two_micro_batches_need(
    there: float, back: float, forward: float, backward: float
) -> None:
    """All its computing, all that it sends, and each of the two from end to end, whichever is most."""
    [order] = orders("1f1b", (0,), 2, pairs=True)
    time = StageTime(forward + there, backward + back, forward_sent=there, backward_sent=back)
    pair = max(forward + backward, there + back, forward + there, backward + back)
    assert simulate((order,), [time], []).seconds == time.forward + pair + time.backward


def test_what_a_pair_computes_is_slower_while_it_sends() -> None:
    """Computing of 1 beside a message of 0.6: 0.4 of it are done meanwhile at two thirds of the pace."""
    [order] = orders("1f1b", (0,), 2, pairs=True)
    time = StageTime(1.6, 1.6, forward_sent=0.6, backward_sent=0.6)
    assert simulate((order,), [time], [], contention=0.5).seconds == pytest.approx(2 * 1.6 + 2 * 1.2)


@pytest.mark.parametrize(("place", "around"), [(0, 0), (1, 1 + 2), (2, 2 + 4)], ids=["first", "middle", "last"])
def test_the_slowest_stage_sets_the_pace_and_the_stages_before_it_start_and_end_the_step(
    place: int, around: float
) -> None:
    """Where the slowest stage is the first, the others' work hides behind its own."""
    times = [StageTime(3.0, 6.0) if stage == place else StageTime(1.0, 2.0) for stage in range(3)]
    assert simulate(orders("1f1b", (0, 1, 2), 8), times, chain(3)).seconds == 8 * 9 + around


def test_messages_on_one_link_queue_up() -> None:
    """Two forwards of 1 follow each other; what they send takes 5 each, one after the other."""
    found = simulate(read_table("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1"), [StageTime(1, 1)] * 2, [Link(0, 1, 5.0, 0.0)])
    assert [(message.start, message.end) for message in found.messages if message.forward] == [(1, 6), (6, 11)]
    assert [span.start for span in found.spans if (span.stage, span.kind) == (1, "forward")] == [6, 11]


@QUICK
@given(cases())
def test_a_step_is_never_shorter_than_any_group_is_busy(case: Case) -> None:
    timeline = run(case)
    assert all(busy <= timeline.seconds + 1e-9 for busy in timeline.busy)


@QUICK
@given(cases())
def test_no_group_does_two_things_at_once(case: Case) -> None:
    for before, after in pairwise(run(case).spans):
        assert before.group != after.group or before.end <= after.start


@QUICK
@given(cases(), st.integers(0, 7), durations)
def test_a_faster_stage_never_makes_a_step_slower(case: Case, number: int, gain: float) -> None:
    faster = [
        time._replace(forward=max(0.0, time.forward - gain)) if place == number else time
        for place, time in enumerate(case.times)
    ]
    assert run(case._replace(times=faster)).seconds <= run(case).seconds


@QUICK
@given(cases(), durations)
def test_a_faster_link_never_makes_a_step_slower(case: Case, gain: float) -> None:
    faster = [link._replace(forward=max(0.0, link.forward - gain)) for link in case.links]
    assert run(case._replace(links=faster)).seconds <= run(case).seconds


def test_stages_that_read_in_a_circle_are_refused() -> None:
    with pytest.raises(PlanError, match="stages 0, 1 wait for each other in a circle"):
        simulate(orders("gpipe", (0, 1), 1), [StageTime(1, 1)] * 2, [Link(0, 1), Link(1, 0)])


@QUICK
@given(cases(), st.data())
def test_sharing_is_never_slower_than_all_at_work_at_once_nor_faster_than_alone(
    case: Case, data: st.DataObject
) -> None:
    """Times are those with all at work; alone a group would be so much faster."""
    devices = {group: data.draw(st.integers(1, 3)) for group in range(len(case.orders))}
    pool = SharedPool(data.draw(st.integers(1, 6)), devices)
    shared = simulate(*case, pools=[pool]).seconds
    most = max(pool.pace({group}) for group in devices)
    assert run(case).seconds / most - 1e-9 <= shared <= run(case).seconds + 1e-9


@QUICK
@given(cases())
def test_a_pool_with_room_for_all_changes_nothing(case: Case) -> None:
    pool = SharedPool(len(case.orders), dict.fromkeys(range(len(case.orders)), 1))
    assert simulate(*case, pools=[pool]).seconds == pytest.approx(run(case).seconds, rel=1e-12)


def test_groups_on_one_core_take_as_long_as_one_after_the_other() -> None:
    """Two groups share one core: however it is divided, it has 2 x 4 x 3 seconds of work at full speed. Times are those
    of both at work, so each action of 1 is half a second of the core, and the core is never idle.
    """
    case = Case(orders("1f1b", (0, 1), 4), [StageTime(1.0, 2.0)] * 2, chain(2))
    shared = simulate(*case, pools=[SharedPool(1, {0: 1, 1: 1})])
    assert shared.seconds == pytest.approx(2 * 4 * 3 / 2)
    assert run(case).seconds == (4 + 1) * 3
