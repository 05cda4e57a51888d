"""What moved in a step, held against what `cost.volumes` says."""

from collections import Counter
from dataclasses import replace

from meshwright.cost.volumes import Collective, step_collectives
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rules import Inputs
from tests.parity.harness import Case, Outcome, batches, build, plan_of, recipe_of
from tests.parity.models import spec_of
from tests.runtime.counting import Counts, assert_moved


def inputs_of(case: Case) -> Inputs:
    """The case as estimates see it, at the length of the step whose bytes are counted."""
    module = build(case)
    counted = case
    if case.changing:
        counted = replace(case, length=batches(case)[case.steps - 2]["input_ids"].shape[1])
    return read_inputs(plan_of(counted), model=spec_of(module), recipe=recipe_of(counted))


def moved_as_predicted(inputs: Inputs, found: list[Outcome]) -> None:
    """Collectives of every rank, and messages between groups, are those of `cost.volumes`, byte for byte; of sums of
    gradients, which share buckets, all together.
    """
    collectives, summed, messages = predicted(inputs)
    groups = inputs.plan.groups
    for name, group in groups.items():
        for rank in group.devices:
            counts = Counter({key: times for key, times in found[rank].moved[0].items() if key[0] != "exchange"})
            counts -= _counts_of_copies(inputs, name)
            assert_moved(counts, collectives[name], summed[name], f"rank {rank}")
    for (source, target), size in messages.items():
        sent, received = (
            max(sum(found[rank].moved[1][way, peer] for peer in groups[there].devices) for rank in groups[here].devices)
            for way, here, there in (("send", source, target), ("recv_", target, source))
        )
        assert max(sent, received) == size, f"{source} to {target}"
    assert set(messages) == {
        (_group_of(inputs, rank), _group_of(inputs, peer))
        for rank, each in enumerate(found)
        for way, peer in each.moved[1]
        if way == "send"
    }


def exchanged_as_predicted(inputs: Inputs, found: list[Outcome]) -> None:
    """What goes between layers that divide tensors unlike, on one group: all of it, by the rank that gets most."""
    exchanged = [
        sum(size * times for (kind, size), times in each.moved[0].items() if kind == "exchange") for each in found
    ]
    wanted = [round(each.bytes) * each.count for each in step_collectives(inputs) if each.kind == "exchange"]
    assert max(exchanged) == sum(wanted)


def _of_experts(inputs: Inputs, group: str) -> list[Collective]:
    every = step_collectives(inputs)
    return [each for each in every if each.purpose == "expert" and group in (each.groups or inputs.plan.groups)]


def _counts_of_copies(inputs: Inputs, group: str) -> Counts:
    """How many copies of positions go to each expert, which every rank tells every other before it sends them: a whole
    number for each expert, of which no estimate takes notice.
    """
    experts = next((op.count for each in inputs.model.layers for op in each.stack.operators if op.op == "experts"), 0)
    there = [each for each in _of_experts(inputs, group) if each.when != "backward"]
    return Counter({("all_to_all", 8 * experts): sum(each.count for each in there) // 2})


def sent_to_experts_as_predicted(inputs: Inputs, found: list[Outcome]) -> None:
    """What goes to experts and comes back. `cost.volumes` says what a rank sends and what comes back to it, exactly;
    what comes to it and it sends back is that of all ranks together, spread as routers choose. Where neighbours
    exchange too, the two are not told apart, and nothing is said.
    """
    if any(each.kind == "exchange" for each in step_collectives(inputs)):
        return
    for name, group in inputs.plan.groups.items():
        wanted = Counter[int]()
        for each in _of_experts(inputs, name):
            wanted[round(each.bytes)] += each.count
        assert wanted, "nothing goes to experts"
        exchanged = [
            Counter({size: times for (kind, size), times in found[rank].moved[0].items() if kind == "exchange"})
            for rank in group.devices
        ]
        for counts in exchanged:
            assert counts.total() == wanted.total()
            assert all(counts[size] >= times // 2 for size, times in wanted.items())
        every = sum(size * times for counts in exchanged for size, times in counts.items())
        assert every == group.size * sum(size * times for size, times in wanted.items())


def _group_of(inputs: Inputs, rank: int) -> str:
    return next(name for name, group in inputs.plan.groups.items() if rank in group.devices)


def predicted(inputs: Inputs) -> tuple[dict[str, Counts], Counter[str], Counter[tuple[str, str]]]:
    """Collectives of each group's ranks, the bytes of the gradients that they sum, and the bytes that go from one group
    to another.
    """
    collectives: dict[str, Counts] = {name: Counter() for name in inputs.plan.groups}
    summed: Counter[str] = Counter()
    messages: Counter[tuple[str, str]] = Counter()
    for each in step_collectives(inputs):
        size = round(each.bytes) * each.count
        if each.purpose == "pipeline":
            source, target = each.groups if each.when == "forward" else each.groups[::-1]
            messages[source, target] += size
        elif (each.purpose, each.kind) == ("gradient", "all_reduce"):
            summed.update(dict.fromkeys(each.groups, size))
        elif each.kind != "exchange" and each.purpose != "expert":
            for name in each.groups or inputs.plan.groups:
                collectives[name][each.kind, round(each.bytes)] += each.count
    return collectives, summed, messages
