"""What moved in a step, held against what `cost.volumes` says."""

from collections import Counter
from dataclasses import replace

from meshwright.cost.volumes import step_collectives
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rules import Inputs
from tests.parity.harness import Case, Outcome, batches, build, plan_of, recipe_of
from tests.parity.models import spec_of
from tests.runtime.counting import Counts


def inputs_of(case: Case) -> Inputs:
    """The case as estimates see it, at the length of the step whose bytes are counted."""
    module = build(case)
    counted = replace(case, length=batches(case)[case.steps - 2]["input_ids"].shape[1])
    return read_inputs(plan_of(counted), model=spec_of(module), recipe=recipe_of(counted))


def moved_as_predicted(inputs: Inputs, found: list[Outcome]) -> None:
    """Collectives of every rank, and messages between groups, are those of `cost.volumes`, byte for byte."""
    collectives, messages = _predicted(inputs)
    groups = inputs.plan.groups
    for name, group in groups.items():
        for rank in group.devices:
            counts = Counter({key: times for key, times in found[rank].moved[0].items() if key[0] != "exchange"})
            assert counts == collectives[name], (rank, counts - collectives[name], collectives[name] - counts)
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


def _group_of(inputs: Inputs, rank: int) -> str:
    return next(name for name, group in inputs.plan.groups.items() if rank in group.devices)


def _predicted(inputs: Inputs) -> tuple[dict[str, Counts], Counter[tuple[str, str]]]:
    """Collectives of each group's ranks, and the bytes that go from one group to another."""
    collectives: dict[str, Counts] = {name: Counter() for name in inputs.plan.groups}
    messages: Counter[tuple[str, str]] = Counter()
    for each in step_collectives(inputs):
        if each.purpose == "pipeline":
            source, target = each.groups if each.when == "forward" else each.groups[::-1]
            messages[source, target] += round(each.bytes) * each.count
        elif each.kind != "exchange":
            for name in each.groups or inputs.plan.groups:
                collectives[name][each.kind, round(each.bytes)] += each.count
    return collectives, messages
