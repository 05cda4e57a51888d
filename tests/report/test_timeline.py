"""The trace of a simulated step, as Perfetto reads it."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from meshwright.cost.calibration import IDEAL
from meshwright.cost.estimate import Estimate, estimate_plan
from meshwright.errors import MeshwrightError
from meshwright.report.timeline import trace, write_trace
from tests.cost.build import inputs, llama


@pytest.fixture(scope="module")
def found() -> Estimate:
    """Two stages on four devices, backwards in halves."""
    asked: dict[str, Any] = {"pp": 2, "micro_batches": 4, "schedule": "zb-h1", "sequence": 128}
    return estimate_plan(inputs(llama(hidden_size=512), "4xh100", {"all": 2}, {"all": "dp"}, **asked))


def of_kind(data: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event["ph"] == phase]


def test_every_action_is_an_event_of_its_group(found: Estimate) -> None:
    events = [event for event in of_kind(trace(found), "X") if event["tid"] == 0]
    assert len(events) == len(found.timeline.spans)
    names = [event["name"] for event in events if event["pid"] == 1]
    for name in ("forward 0", "input 0", "weight 3", "optimizer"):
        assert name in names
    last = max(event["ts"] + event["dur"] for event in events)
    assert last == pytest.approx(found.step_time_s * 1e6)


@pytest.fixture(scope="module")
def slow() -> Estimate:
    """Three stages on slow links: the second sends both ways at the same time."""
    asked: dict[str, Any] = {"pp": 3, "batch": 24, "micro_batches": 12, "sequence": 256}
    given = inputs(llama(num_hidden_layers=6), "3x1xh100:eth10", {"all": 1}, {"all": "dp"}, **asked)
    return estimate_plan(given, IDEAL)  # whose devices never wait for their hosts, only for links


@pytest.mark.parametrize("name", ["found", "slow"])
def test_events_of_one_row_do_not_overlap(name: str, request: pytest.FixtureRequest) -> None:
    rows = defaultdict(list)
    for event in of_kind(trace(request.getfixturevalue(name)), "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(spans))


def test_messages_go_there_and_back(found: Estimate) -> None:
    sent = [event["name"] for event in of_kind(trace(found), "X") if event["cat"] == "send"]
    assert "activations 0: stage 0 to 1" in sent
    assert "gradients 3: stage 1 to 0" in sent
    assert len(sent) == 2 * 4


def test_what_a_group_sends_has_a_row_for_each_group_that_it_goes_to(slow: Estimate) -> None:
    data = trace(slow)
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_kind(data, "M")
        if event["name"] == "thread_name"
    }
    assert sorted(name for (group, _), name in named.items() if group == 1) == [
        "compute",
        "sends to g0",
        "sends to g2",
    ]
    assert {(event["pid"], event["tid"]) for event in of_kind(data, "X")} == set(named)
    messages = [message for message in slow.timeline.messages if (message.source, message.target) in {(0, 1), (1, 2)}]
    there = [message for message in messages if message.forward and message.source == 1]
    back = [message for message in messages if not message.forward and message.target == 1]
    assert any(one.start < other.end and other.start < one.end for one in there for other in back)


def test_memory_is_a_counter_whose_highest_is_the_peak(found: Estimate) -> None:
    for group, memory in enumerate(found.memory):
        sizes = [event["args"]["bytes"] for event in of_kind(trace(found), "C") if event["pid"] == group]
        assert max(sizes) == pytest.approx(memory.peak)


def test_the_file_is_json_and_one_that_cannot_be_written_is_an_error(found: Estimate, tmp_path: Path) -> None:
    write_trace(tmp_path / "step.json", trace(found))
    assert json.loads((tmp_path / "step.json").read_text())["otherData"]["step_time_s"] == found.step_time_s
    with pytest.raises(MeshwrightError, match="cannot be written"):
        write_trace(tmp_path / "nowhere" / "step.json", trace(found))
