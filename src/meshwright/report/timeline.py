"""A simulated step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format's JSON object (Google, 2016): complete events in microseconds, one process a group
of devices with a row for what it computes and one for each group that it sends to, and a counter for its memory. Events
of one row follow each other; on links to several groups a group may send at the same time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.cost.estimate import Estimate
from meshwright.cost.simulation import Message, Span
from meshwright.errors import MeshwrightError

_COMPUTE, _FIRST_SEND = 0, 1
"""Rows: what a group sends to the first group stands in the second row, and so on."""
_MICRO = 1e6


def trace(found: Estimate) -> dict[str, Any]:
    """The trace of an estimate as plain data."""
    timeline = found.timeline
    names = [each.group for each in found.memory]
    group_of = {span.stage: span.group for span in timeline.spans}
    sent = [(*_ends(message, group_of), message) for message in timeline.messages]
    ways = sorted({(sender, receiver) for sender, receiver, _ in sent})
    events = [*_names(names, ways), *map(_span, timeline.spans), *map(_message, sent), *_counters(found)]
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"step_time_s": timeline.seconds}}


def write_trace(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write a trace to a file. Raises MeshwrightError where it cannot be written."""
    try:
        Path(path).write_text(json.dumps(data, allow_nan=False), encoding="utf-8")
    except OSError as error:
        raise MeshwrightError(f"{path}: cannot be written: {error.strerror or error}") from None


def _names(groups: Sequence[str], ways: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    rows = [(number, _COMPUTE, "compute") for number in range(len(groups))]
    rows += [(sender, _FIRST_SEND + receiver, f"sends to {groups[receiver]}") for sender, receiver in ways]
    for number, name in enumerate(groups):
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"group {name}"}}
    for number, row, said in rows:
        yield {"ph": "M", "pid": number, "tid": row, "name": "thread_name", "args": {"name": said}}


def _span(span: Span) -> dict[str, Any]:
    once = span.micro_batch is None
    name = span.kind if once else f"{span.kind} {span.micro_batch}"
    facts = {} if once else {"stage": span.stage, "micro_batch": span.micro_batch}
    return _event((span.group, _COMPUTE), name, span.kind, (span.start, span.end)) | {"args": facts}


def _ends(message: Message, group_of: Mapping[int, int]) -> tuple[int, int]:
    """The groups that send and receive it."""
    ends = group_of[message.source], group_of[message.target]
    return ends if message.forward else ends[::-1]


def _message(sent: tuple[int, int, Message]) -> dict[str, Any]:
    sender, receiver, message = sent
    return _event((sender, _FIRST_SEND + receiver), _said(message), "send", (message.start, message.end))


def _said(message: Message) -> str:
    ends = (message.source, message.target) if message.forward else (message.target, message.source)
    what = "activations" if message.forward else "gradients"
    return f"{what} {message.micro_batch}: stage {ends[0]} to {ends[1]}"


def _event(row: tuple[int, int], name: str, kind: str, times: tuple[float, float]) -> dict[str, Any]:
    (group, thread), (start, end) = row, times
    place = {"ph": "X", "pid": group, "tid": thread, "ts": start * _MICRO, "dur": (end - start) * _MICRO}
    return place | {"name": name, "cat": kind}


def _counters(found: Estimate) -> Iterator[dict[str, Any]]:
    """Each group's bytes from the start of each of its actions, and at the end of the step."""
    for group, memory in enumerate(found.memory):
        actions = [span for span in found.timeline.spans if span.group == group and span.micro_batch is not None]
        for span, size in zip(actions, memory.over_time.tolist(), strict=True):
            yield _counter(group, span.start, size)
        end = next(each for each in memory.instants if each.name == "step")
        yield _counter(group, actions[-1].end, end.total)


def _counter(group: int, at: float, size: float) -> dict[str, Any]:
    return {"ph": "C", "pid": group, "name": "memory", "ts": at * _MICRO, "args": {"bytes": size}}
